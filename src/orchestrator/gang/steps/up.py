"""`up`: starts the gangs that are not running, and changes over those that serve another plan, one after another.

A gang's turn: remove it from the router, drain, stop, start with the new plan, canary, add it again. The first one
that does not come up returns to its previous plan; the others keep serving unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from orchestrator.doctor.steps.doctor import forbidding
from orchestrator.gang import changing
from orchestrator.gang.changing import GangStanding
from orchestrator.gang.downtime import expected_downtime
from orchestrator.gang.operations import OperationKind
from orchestrator.gang.steps.checks import refuse_on_nodes
from orchestrator.gang.steps.down import DownRequest, down
from orchestrator.gang.steps.guard.leaving import leave
from orchestrator.gang.steps.guard.relaunch import facts_of_now
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.raising import (
    Rising,
    StagedFleet,
    UpRequest,
    UpResult,
    Watcher,
    everybody_answers,
    ground,
    raise_all,
    raise_gangs,
    risings,
)
from orchestrator.gang.steps.replay import Staged, staged_plan
from orchestrator.gang.steps.restart import stop
from orchestrator.gang.steps.restart_sequence import Address, GangRestart, RestartSequence, RestartStep, put_back
from orchestrator.gang.steps.router.routing import Router, enrol
from orchestrator.gang.steps.status.reports import as_they_run, see
from orchestrator.gang.steps.status.unfinished import begun_on
from orchestrator.gang.view import GangView
from orchestrator.model.errors import DeployError, FindingsError, InputError
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.model.plan import GangPlan, Plan
from orchestrator.nettest.steps.before_go import tested_before
from orchestrator.planning.diff import GangDiff, summary
from orchestrator.planning.steps.diff import compare
from orchestrator.remote.fleet import Fleet, StragglerWait


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChangeOver:
    """One gang that is changed over.

    standing: where it runs now
    plan:     what it is to run, started as `will`
    was:      what it can return to, None where its nodes do not have the same plan
    """

    view: GangView
    standing: GangSpec
    diff: GangDiff
    plan: GangPlan
    was: Staged | None
    will: Rising

    @property
    def name(self) -> str:
        return self.will.gang.name

    @property
    def cost(self) -> str:
        """The expected downtime, as text."""
        return expected_downtime(self.view, self.was.drain_s if self.was else 0.0).words


@dataclass(frozen=True, slots=True, kw_only=True)
class _GangChanges:
    """rise: gangs whose start interrupts nothing; same: ids of plans that mean the same as the new one, by gang."""

    rise: tuple[GangSpec, ...]
    same: dict[str, str]
    turns: tuple[_ChangeOver, ...]


def up(inventory: Inventory, request: UpRequest, watcher: Watcher) -> UpResult:
    """Have every chosen gang serve the plan.

    Raises Unreachable, LockHeld and FindingsError before anything is started; InputError where changing a gang over
    needs `replace`; NodeError where a node's checks refuse; GangFailed with the one cause and with what the gangs run
    afterwards. KeyboardInterrupt detaches; Undone where a gang's ranks had not started.
    """
    with ground(inventory, request, watcher) as here:
        begin = time.monotonic()
        begun = begun_on(here.fleet, here.gangs)
        change = _change(inventory, here, request, watcher)
        refuse_on_nodes(here.fleet, [_to_check(turn.will) for turn in change.turns])
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
            turns = RestartSequence(here.fleet, router, watcher, operation)
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


def rehearse(inventory: Inventory, request: UpRequest, watcher: Watcher) -> Plan:
    """The plan that `up` would carry out. Changes nothing; raises what `up` would be refused for before it starts or
    stops anything."""
    with ground(inventory, request, watcher, locked=False) as here:
        change = _change(inventory, here, request, watcher)
        absent = [gang for gang, view in zip(here.gangs, here.views, strict=True) if not view.running]
        rise = [_to_check(rising) for rising in risings(absent, here.plan, request)]
        refuse_on_nodes(here.fleet, [*rise, *(_to_check(turn.will) for turn in change.turns)])
        return here.plan


def _to_check(rising: Rising) -> Staged:
    """What is to be staged."""
    return Staged(gang=rising.gang, requests=rising.requests("", ""))


def refuse_transport(inventory: Inventory, views: Sequence[GangView], *, command: str) -> None:
    """For --strict: stop every gang whose traffic does not travel as planned and which is slower for it, and raise
    FindingsError with the first; quiet where there is none."""
    wrong = {view.name: refused for view in views if (refused := refusal(view))}
    if not wrong:
        return
    down(inventory, DownRequest(gangs=tuple(wrong), now=True, command=command))
    raise next(iter(wrong.values()))


def refusal(view: GangView) -> FindingsError | None:
    """The first finding of such a gang that --strict forbids, in words that say that it was stopped; None for none."""
    first = next(iter(forbidding(view.transport, strict=True)), None)
    if first is None:
        return None
    return FindingsError(
        f"{first.id}: {first.title}. {first.effect}; the gang was stopped because of --strict",
        where=f"gang {view.name}: {first.node}",
        fix=first.fix,
    )


def _led_by_another(here: StagedFleet) -> bool:
    """Whether some gang's newest run had another leader than the plan, and so another address."""
    leaders = {gang.name: gang.leader.name for gang in here.gangs}
    return any(view.members and view.members[0] != leaders[view.name] for view in here.views)


def _change(inventory: Inventory, here: StagedFleet, request: UpRequest, watcher: Watcher) -> _GangChanges:
    diffs = _diffs(here)
    same = {name: diff.running for name, diff in diffs.items() if not diff.changes}
    course = changing.course(_standings(here, same), elsewhere=_serving_elsewhere(inventory, here) if diffs else 0)
    turns = _change_overs(here, request, course.turns, diffs)
    for turn in turns:
        reason = _reason(inventory, turn, course)
        if reason and not request.replace:
            raise _refused(turn, here.plan.plan_id, reason)
        if reason:
            watcher.step(turn.name, turn.cost)
    return _GangChanges(rise=tuple(gang for gang in here.gangs if gang.name in course.rise), same=same, turns=turns)


def _diffs(here: StagedFleet) -> dict[str, GangDiff]:
    """What the plan changes on each gang that runs a plan of another id."""
    other = [
        gang
        for gang, view in zip(here.gangs, here.views, strict=True)
        if view.running and view.plan_id != here.plan.plan_id
    ]
    return {diff.name: diff for diff in compare(here.fleet, other, here.plan)}


def _standings(here: StagedFleet, same: Collection[str]) -> list[GangStanding]:
    return [
        GangStanding(
            name=view.name,
            state=view.state,
            same=view.plan_id == here.plan.plan_id or view.name in same,
            serving=bool(view.service_healthy),
        )
        for view in here.views
    ]


def _change_overs(
    here: StagedFleet, request: UpRequest, names: Sequence[str], diffs: Mapping[str, GangDiff]
) -> tuple[_ChangeOver, ...]:
    views = {view.name: view for view in here.views}
    plans = {gang.name: gang for gang in here.plan.gangs}
    will = {rising.gang.name: rising for rising in risings(here.gangs, here.plan, request)}
    return tuple(
        _ChangeOver(
            view=views[name],
            standing=here.standing[name],
            diff=diffs[name],
            plan=plans[name],
            was=_previous(here.fleet, here.standing[name]),
            will=will[name],
        )
        for name in names
    )


def _serving_elsewhere(inventory: Inventory, here: StagedFleet) -> int:
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


def _reason(inventory: Inventory, turn: _ChangeOver, course: changing.ChangeSchedule) -> str:
    """Why changing this gang over is more than an operator may expect of `up`; '' where it is not."""
    if turn.plan.model != turn.view.model:  # meanwhile, two models would answer at one address
        return f"the new plan serves another model than {turn.view.model}, which this address serves now"
    if turn.name in course.busy:
        return "the gang is still starting"
    if turn.name in course.alone:
        return "no other gang would serve in the meantime"
    if inventory.router is None:
        return "no router sends its requests to the other gangs in the meantime"
    return ""


def _refused(turn: _ChangeOver, plan_id: str, reason: str) -> InputError:
    return InputError(
        f"this gang runs another plan: {turn.diff.running} ({turn.view.model}) is {turn.view.state.value}; "
        f"plan {plan_id} changes {summary(turn.diff.changes)}. {reason}: {turn.cost}",
        where=f"gang {turn.name}",
        fix="see all changes with `l40s-deploy plan --diff` and the same options. --replace stops the gang and starts"
        " it with the new plan; if it does not come up, the old plan is restored",
    )


def _operation(here: StagedFleet, changes: Sequence[_ChangeOver], request: UpRequest) -> Operation:
    locks = [here.locks[change.name] for change in changes]
    return Operation(OperationKind.CHANGE, request.command, [change.view for change in changes], locks)


def _turn(
    turns: RestartSequence, change: _ChangeOver, changes: Sequence[_ChangeOver], request: UpRequest
) -> GangRestart:
    """A gang whose new plan does not come up returns to its previous plan. So does one that is interrupted after it
    was told to stop, where that was asked for."""

    def failed(step: RestartStep) -> str:
        others = _others(change, changes)
        if step in (RestartStep.ASIDE, RestartStep.STOP):
            return f"{change.name} was about to be changed over; {others}"
        return f"{_go_back(turns, change, request)}; {others}"

    def left(step: RestartStep) -> str:
        return _go_back(turns, change, request) if request.undo_on_interrupt and step is not RestartStep.ASIDE else ""

    def accept(views: Sequence[GangView]) -> None:
        for view in views:
            if request.strict and (refused := refusal(view)):
                raise refused

    place = Address(
        gang=change.standing,
        url=change.view.service_url,
        serving=bool(change.view.service_healthy),
        then=change.plan.service_url,
    )
    return GangRestart(
        places=(place,),
        start=(change.will,),
        drain_s=request.drain_s,
        timeout_s=request.timeout_s,
        undo_on_interrupt=request.undo_on_interrupt,
        check=lambda: refuse_on_nodes(turns.fleet, [_to_check(change.will)]),
        accept=accept,
        failed=failed,
        left=left,
    )


def _go_back(turns: RestartSequence, change: _ChangeOver, request: UpRequest) -> str:
    """Start the previous plan again; returns the outcome as text."""
    was = change.was
    if was is None:
        return f"{change.name} is stopped: its nodes had no common previous plan to return to"
    turns.watcher.step(change.name, f"restoring plan {was.plan_id}")
    try:
        (view,) = see(turns.fleet, [change.standing], patience=StragglerWait())
        everybody_answers([view])
        if view.running:  # still draining, if the stop was interrupted
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
