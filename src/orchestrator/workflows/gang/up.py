"""`up`: starts gangs that do not run; changes gangs that serve another plan over, one after the other.

A gang's turn: remove from the router, drain, stop, start with the new plan, canary, add again. The first
that does not come up returns to its previous plan, and the others keep serving unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from orchestrator.gang import changing
from orchestrator.gang.begun import What
from orchestrator.gang.changing import Standing
from orchestrator.gang.downtime import expected_downtime
from orchestrator.gang.view import GangView
from orchestrator.model.errors import DeployError, InputError
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.model.plan import Plan
from orchestrator.planning.diff import GangDiff, summary
from orchestrator.remote.fleet import Fleet
from orchestrator.workflows.gang.nettested import tested_before
from orchestrator.workflows.gang.operation import Operation, begun_on
from orchestrator.workflows.gang.raising import (
    Ground,
    Rising,
    UpRequest,
    UpResult,
    Watcher,
    ground,
    raise_all,
    raise_gangs,
    risings,
)
from orchestrator.workflows.gang.replay import Staged, staged_plan
from orchestrator.workflows.gang.restart import stop
from orchestrator.workflows.gang.strict import refusal
from orchestrator.workflows.gang.turns import Address, Step, Turn, Turns, put_back
from orchestrator.workflows.plan.diff import compare
from orchestrator.workflows.router.routing import Router, enrol
from orchestrator.workflows.status.reports import as_they_run, see
from orchestrator.workflows.survive.leaving import leave
from orchestrator.workflows.survive.relaunch import facts_of_now


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChangeOver:
    """One gang that is changed over. was: what it can go back to, None where its nodes do not hold one plan."""

    view: GangView
    standing: GangSpec
    """Where it runs now, and where it is to run."""
    diff: GangDiff
    was: Staged | None
    will: Rising
    url: str

    @property
    def gang(self) -> GangSpec:
        return self.will.gang

    @property
    def name(self) -> str:
        return self.will.gang.name


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """rise: gangs that are started without loss; same: ids of plans that mean the same as the new one, by gang."""

    rise: tuple[GangSpec, ...]
    same: dict[str, str]
    turns: tuple[_ChangeOver, ...]


def up(inventory: Inventory, request: UpRequest, watcher: Watcher) -> UpResult:
    """Have every chosen gang serve the plan.

    Raises Unreachable, LockHeld and FindingsError before anything is started; InputError where changing a gang over
    would leave nobody serving, unless `replace`; NodeError where a node's checks refuse, GangFailed with the one
    cause and with what the gangs run then. KeyboardInterrupt detaches; Undone where a gang's ranks had not started.
    """
    with ground(inventory, request, watcher) as here:
        begin = time.monotonic()
        begun = begun_on(here.fleet, here.gangs)
        change = _change(inventory, here, request, watcher)
        if request.plan.without or _led_by_another(here):
            rising = [gang.name for gang in change.rise]
            leave(inventory, here.fleet, here.plan, request.plan.without, watcher, rising=rising)
        before_go = tested_before(here, request, watcher)
        first = raise_gangs(
            here.fleet,
            change.rise,
            here.plan,
            request,
            watcher,
            running=change.same,
            before_go=before_go,
        )
        if not change.turns:
            return replace(first, begun=begun)
        enrol(inventory, see(here.fleet, here.gangs), watcher, command=request.command)
        views = {view.name: view for view in first.views}
        with (
            Router(inventory.router) if inventory.router is not None else nullcontext() as router,
            _operation(here, change.turns, request) as operation,
        ):
            turns = Turns(here.fleet, router, watcher, operation)
            for change_over in change.turns:
                turn = replace(_turn(turns, change_over, change.turns, request), before_go=before_go)
                (views[change_over.name],) = turns.take(turn).views
        return replace(
            first,
            views=tuple(views[gang.name] for gang in here.gangs),
            seconds=time.monotonic() - begin,
            changed=tuple(turn.name for turn in change.turns),
            begun=begun,
        )


def _led_by_another(here: Ground) -> bool:
    """Some gang's newest run had another leader than the plan: it serves at another address."""
    leaders = {gang.name: gang.leader.name for gang in here.gangs}
    return any(view.members and view.members[0] != leaders[view.name] for view in here.views)


def _change(inventory: Inventory, here: Ground, request: UpRequest, watcher: Watcher) -> _Change:
    other = [view.name for view in here.views if view.running and view.plan_id != here.plan.plan_id]
    diffs = {diff.name: diff for diff in compare(here.fleet, [g for g in here.gangs if g.name in other], here.plan)}
    same = {name: diff.running for name, diff in diffs.items() if not diff.changes}
    standings = [
        Standing(
            name=view.name,
            state=view.state,
            same=view.plan_id == here.plan.plan_id or view.name in same,
            serving=bool(view.service_healthy),
        )
        for view in here.views
    ]
    course = changing.course(standings, elsewhere=_serving_elsewhere(inventory, here) if other else 0)
    views = {view.name: view for view in here.views}
    gangs = {gang.name: gang for gang in here.gangs}
    new = {rising.gang.name: rising for rising in risings(here.gangs, here.plan, request)}
    urls = {gang.name: gang.service_url for gang in here.plan.gangs}
    turns = tuple(
        _ChangeOver(
            view=views[name],
            standing=here.standing[name],
            diff=diffs[name],
            was=_previous(here.fleet, here.standing[name]),
            will=new[name],
            url=urls[name],
        )
        for name in course.turns
    )
    for turn in turns:
        reason = _another_model(turn, here.plan) or _reason(inventory, turn.name, course)
        if reason and not request.replace:
            raise _refused(turn, here.plan.plan_id, reason)
        if reason:
            watcher.step(turn.name, expected_downtime(turn.view, turn.was.drain_s if turn.was else 0.0).words)
    return _Change(rise=tuple(gangs[name] for name in course.rise), same=same, turns=turns)


def _serving_elsewhere(inventory: Inventory, here: Ground) -> int:
    chosen = {gang.name for gang in here.gangs}
    others = [gang for gang in inventory.gangs if gang.name not in chosen]
    if not others or inventory.router is None:
        return 0
    with Fleet([node for gang in others for node in gang.nodes]) as fleet:
        return sum(bool(view.service_healthy) for view in see(fleet, others))


def _previous(fleet: Fleet, gang: GangSpec) -> Staged | None:
    try:
        return staged_plan(fleet, as_they_run(fleet, [gang])[0])
    except InputError:
        return None


def _another_model(turn: _ChangeOver, plan: Plan) -> str:
    """Behind one address two models would answer meanwhile, which the operator did not ask for."""
    model = next(gang.model for gang in plan.gangs if gang.name == turn.name)
    if model == turn.view.model:
        return ""
    return f"the new plan serves another model than {turn.view.model}, which this address serves now"


def _reason(inventory: Inventory, name: str, course: changing.Course) -> str:
    """Why taking this gang down is more than an operator may expect of `up`; '' where it is not."""
    if name in course.busy:
        return "the gang is still starting"
    if name in course.alone:
        return "no other gang would serve in the meantime"
    if inventory.router is None:
        return "no router sends its requests to the other gangs in the meantime"
    return ""


def _refused(turn: _ChangeOver, plan_id: str, reason: str) -> InputError:
    cost = expected_downtime(turn.view, turn.was.drain_s if turn.was else 0.0).words
    return InputError(
        f"this gang runs another plan: {turn.diff.running} ({turn.view.model}) is {turn.view.state.value}; "
        f"plan {plan_id} changes {summary(turn.diff.changes)}. {reason}: {cost}",
        where=f"gang {turn.name}",
        fix="see all changes with `l40s-deploy plan --diff` and the same options. --replace stops the gang and starts"
        " it with the new plan; if it does not come up, the old plan is restored",
    )


def _operation(here: Ground, changes: Sequence[_ChangeOver], request: UpRequest) -> Operation:
    locks = [here.locks[change.name] for change in changes]
    return Operation(What.CHANGE, request.command, [change.view for change in changes], locks)


def _turn(turns: Turns, change: _ChangeOver, changes: Sequence[_ChangeOver], request: UpRequest) -> Turn:
    """Where its new plan does not come up, it goes back; so it does once it was told to stop and is interrupted, where
    that was asked for."""

    def failed(step: Step) -> str:
        others = _others(change, changes)
        if step in (Step.ASIDE, Step.STOP):
            return f"{change.name} was about to be changed over; {others}"
        return f"{_go_back(turns, change, request)}; {others}"

    def left(step: Step) -> str:
        return _go_back(turns, change, request) if request.undo_on_interrupt and step is not Step.ASIDE else ""

    def accept(views: Sequence[GangView]) -> None:
        for view in views:
            if request.strict and (refused := refusal(view)):
                raise refused

    serving = bool(change.view.service_healthy)
    return Turn(
        places=(Address(gang=change.standing, url=change.view.service_url, serving=serving, then=change.url),),
        start=(change.will,),
        drain_s=request.drain_s,
        timeout_s=request.timeout_s,
        undo_on_interrupt=request.undo_on_interrupt,
        accept=accept,
        failed=failed,
        left=left,
    )


def _go_back(turns: Turns, change: _ChangeOver, request: UpRequest) -> str:
    """Start the previous plan again; returns the outcome as text."""
    was = change.was
    if was is None:
        return f"{change.name} is stopped: its nodes had no common previous plan to return to"
    turns.watcher.step(change.name, f"restoring plan {was.plan_id}")
    try:
        if see(turns.fleet, [change.standing])[0].running:  # draining still, where somebody interrupted the stop
            stop(turns.fleet, [change.standing], turns.watcher, now=True)
        raise_all(
            turns.fleet,
            [was.rising(going_back=True, of_now=facts_of_now(turns.fleet, turns.watcher))],
            turns.watcher,
            timeout_s=request.timeout_s,
        )
        put_back(turns.router, [Address(gang=change.standing, url=was.service_url)], turns.watcher)
    except DeployError as second:
        return f"restoring plan {was.plan_id} failed too: {second.where}: {second.what}"
    turns.operation.finished([change.name])
    return f"{change.name} is back on its previous plan {was.plan_id}"


def _others(turn: _ChangeOver, turns: Sequence[_ChangeOver]) -> str:
    """The other gangs' state, as text."""
    place = turns.index(turn)
    words = [f"on the new plan: {', '.join(one.name for one in turns[:place])}"] if place else []
    rest = [one.name for one in turns[place + 1 :]]
    words += [f"not changed: {', '.join(rest)}"] if rest else []
    return "; ".join(words) or "no other gang had to be changed"
