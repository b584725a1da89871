"""The verbs that restart gangs, which plan each wants, and in which order; and what an interrupted command has begun is
finished, from wherever the nodes are now: by a guard, by the next `up`. `restart_sequence` has the steps.

restart        the plan that its nodes have, all gangs in one turn
--rolling      the same, gang by gang, while the others serve behind the router
--maintenance  the same, gang by gang, with work on the nodes in between
rollback       the plan before, gang by gang; where it does not come up, the one that it had
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.gang.operations import GangOperation, OperationKind
from orchestrator.gang.serving import Serving, alone, lost_names, name_words, names_of
from orchestrator.gang.steps import raising
from orchestrator.gang.steps.changes import GangRehearsal, would
from orchestrator.gang.steps.checks import refuse_starts
from orchestrator.gang.steps.down import stop
from orchestrator.gang.steps.locks import GangLock
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.raising import Watcher
from orchestrator.gang.steps.restart_sequence import RESTART, ROLLING, GangRestart, RestartRequest, RestartSequence
from orchestrator.gang.steps.router.claim import RouterTurn
from orchestrator.gang.steps.router.client import Router
from orchestrator.gang.steps.router.mixing import refuse_mixed_models
from orchestrator.gang.steps.router.routing import (
    leave_router,
    rejoin,
    serving_of,
    take_in_serving,
    wanted_router,
)
from orchestrator.gang.steps.staging import facts_of_now, staged_plan
from orchestrator.gang.steps.status.reports import as_it_runs, interrupted, see
from orchestrator.gang.view import GangView
from orchestrator.model.chosen import chosen_gangs, same_nodes
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.protocol.errors import DeployError, FindingsError, InputError, NodeError
from orchestrator.protocol.message import MOST_SECONDS
from orchestrator.remote.fleet import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartResult:
    """The gangs as they were seen last, and seconds from the first stop until all had served again. rolled: one after
    the other, while others served."""

    views: tuple[GangView, ...]
    seconds: float
    rolled: bool = False


def restart(operation: Operation, request: RestartRequest, watcher: Watcher) -> RestartResult:
    """Have the chosen gangs stop, and serve again by the plan that the verb wants, behind the router.

    Before it locks anything it waits until no other command changes a gang behind the router.
    Raises before anything is stopped: Unreachable, LockHeld, InputError where a gang's nodes have no such plan or too
    few gangs would serve, what the checks of the starts refuse. Later what a step raises, with what became of them.
    """
    specs, _ = _Restart(operation, request, watcher).answering()
    with _turn_of(operation, request, [gang.name for gang in specs], watcher) as turn:
        if not turn.take():
            operation.fleet.let_go()
            turn.wait()
            if request.verb is RESTART and not request.now and can_roll(operation, request.gangs):
                request = replace(request, verb=ROLLING)  # those that were out when it was typed serve meanwhile
            specs, _ = _Restart(operation, request, watcher).answering()  # what was seen before the wait is old
        return _restart(operation, specs, request, watcher, turn)


def _restart(
    operation: Operation, specs: Sequence[GangSpec], request: RestartRequest, watcher: Watcher, turn: RouterTurn
) -> RestartResult:
    """specs: the gangs on the nodes where they are to run"""
    fleet, verb = operation.fleet, request.verb
    with ExitStack() as opened:
        wanted = _Restart(operation, request, watcher)
        why = verb.what.value if verb.work else ""
        locks = {gang.name: opened.enter_context(GangLock(fleet, gang, request.command, why=why)) for gang in specs}
        # seen anew: only under the locks does what is seen stay so until it is stopped
        gangs = wanted.restarts(specs, operation.look(specs))
        router = wanted.router(gangs)
        names = ", ".join(turn.name for turn in gangs)
        if router is not None:
            behind = take_in_serving(operation, router, watcher, ours=turn.token)
            if verb.rolls:
                wanted.refuse_too_few(behind, "serve behind the router")
            wanted.say_lost(gangs, behind)
        wanted.refuse(gangs)
        if verb.together and len(gangs) > 1:
            watcher.step(names, "all of these stop at the same time; each serves again once it has started")
        begin = time.monotonic()
        steps = RestartSequence(
            fleet=fleet,
            router=router,
            front=operation.router,
            watcher=watcher,
            request=request,
            check=wanted.refuse,
            our_turn=turn.still_ours,
        )
        views = steps.run(gangs, locks)
        return RestartResult(views=views, seconds=time.monotonic() - begin, rolled=verb is ROLLING)


def _turn_of(operation: Operation, request: RestartRequest, gangs: Collection[str], watcher: Watcher) -> RouterTurn:
    """The turn behind the router of a command that takes these gangs out."""
    return RouterTurn(
        operation=operation,
        gangs=gangs,
        command=request.command,
        watcher=watcher,
        patience_s=request.timeout_s,
        way=request.way,
    )


def rehearse_restart(operation: Operation, request: RestartRequest, watcher: Watcher) -> tuple[GangRehearsal, ...]:
    """What `restart` would do; takes no lock and changes nothing. Raises what it would raise before it stops a gang."""
    wanted = _Restart(operation, request, watcher)
    gangs = wanted.restarts(*wanted.answering())
    wanted.router(gangs)
    wanted.refuse(gangs)
    after = ", one gang after the other" if len(gangs) > 1 and not request.verb.together else ""
    return tuple(
        would(turn.view, turn.plan.plan_id, f"{_aim(turn)}{after}; {turn.downtime(now=request.now)}") for turn in gangs
    )


def _aim(turn: GangRestart) -> str:
    if turn.before is None or turn.before.plan_id == turn.plan.plan_id:
        return "would be restarted"
    return f"would return from plan {turn.before.plan_id} to plan {turn.plan.plan_id} ({turn.plan.model})"


@dataclass(frozen=True, slots=True)
class _Restart:
    """What a request means for the gangs as they are, before anything is done."""

    operation: Operation
    request: RestartRequest
    watcher: Watcher

    @property
    def inventory(self) -> Inventory:
        """Of the operation."""
        return self.operation.inventory

    @property
    def fleet(self) -> Fleet:
        """Of the operation."""
        return self.operation.fleet

    def answering(self) -> tuple[Sequence[GangSpec], Sequence[GangView]]:
        """The gangs on the nodes where they are to run. Raises where one of these does not answer."""
        chosen = chosen_gangs(self.inventory, self.request.gangs)
        running = self.operation.as_they_run(chosen)
        if self.request.verb.before:  # the older plan may have nodes that it goes on without now
            specs = tuple(now if same_nodes(now, gang) else gang for gang, now in zip(chosen, running, strict=True))
        else:
            specs = running
        views = self.operation.look(specs)
        raising.everybody_answers(views)
        return specs, views

    def restarts(self, specs: Sequence[GangSpec], views: Sequence[GangView]) -> list[GangRestart]:
        """The gangs in their order, each with the plan that the verb wants."""
        verb, hung_s = self.request.verb, self.request.hung_after_s
        running = [as_it_runs(gang, view) for gang, view in zip(specs, views, strict=True)]
        befores = [staged_plan(self.fleet, gang).hung_after(hung_s) for gang in running]
        plans = verb.before(self.operation, befores) if verb.before else befores
        of_now, back = facts_of_now(self.fleet, self.watcher.step), verb.before is not None
        turns = [
            GangRestart(gang=gang, view=view, before=before, plan=plan.again(of_now, going_back=back))
            for gang, view, before, plan in zip(specs, views, befores, plans, strict=True)
        ]
        # one that does not serve costs nothing to restart, and may serve for the next ones
        return sorted(turns, key=lambda turn: bool(turn.view.service_healthy)) if verb.rolls else turns

    def router(self, gangs: Sequence[GangRestart]) -> Router | None:
        """What requests are sent elsewhere by. Raises where a rolling restart would leave nobody to serve them."""
        inventory, verb = self.inventory, self.request.verb
        if not verb.rolls:
            return None if verb.together else self.operation.serving_router()
        single = len(inventory.gangs) < 2
        if single and (inventory.router is None or self.request.without_router):
            raise _alone(inventory, gangs[0])
        router = None if self.request.without_router else wanted_router(self.operation)
        ready = [view for view in self.operation.look() if view.serves]
        serving = _who_serves(router, ready)
        if single and serving.keys() <= {view.name for view in ready}:
            raise _alone(inventory, gangs[0])
        self.refuse_too_few(serving, "serve")
        return router

    def refuse_too_few(self, serving: Serving, do: str) -> None:
        """Somebody must serve a gang's model while it does not."""
        chosen = [gang.name for gang in chosen_gangs(self.inventory, self.request.gangs)]
        lone = alone(chosen, serving)
        if not serving or lone:
            left = f"none would be left for {name_words(lost_names(lone, serving))}" if lone else "none would be left"
            raise InputError(
                f"{len(serving)} of {len(self.inventory.gangs)} gangs {do} ({', '.join(sorted(serving)) or 'none'});"
                f" with one down at a time, {left}",
                where="--rolling",
                fix="bring the others up first, or restart without --rolling",
            )

    def say_lost(self, gangs: Sequence[GangRestart], behind: Serving) -> None:
        """What is asked of each of these gangs alone, behind the router."""
        for turn in gangs:
            if lost := lost_names([turn.name], behind):
                what = f"no other gang serves {name_words(lost)} behind the router"
                self.watcher.step(turn.name, f"{what}: requests fail until it is back")

    def refuse(self, gangs: Sequence[GangRestart]) -> None:
        """Raise what forbids the start that follows, unless that is accepted."""
        try:
            refuse_starts(self.fleet, [turn.plan for turn in gangs], self.watcher, accept=self.request.accept)
            if (router := self.operation.router) is not None:
                views = self.operation.glance()
                refuse_mixed_models(router, views, {turn.name: turn.plan for turn in gangs})
        except (FindingsError, NodeError) as refused:
            if self.request.verb.work:
                names = " ".join(turn.name for turn in gangs)
                refused.fix += (
                    f"; if this work repairs it, and it can't be accepted: `l40s-deploy down {names}`, and after"
                    f" the work `l40s-deploy restart {names}`"
                )
            raise


def _alone(inventory: Inventory, turn: GangRestart) -> InputError:
    return InputError(
        f"a single gang can't be restarted without downtime: {turn.downtime()}",
        where=f"{inventory.path}: --rolling",
        fix=f"accept the downtime with `l40s-deploy restart {turn.name}`, or add a second gang behind a router",
    )


def can_roll(operation: Operation, names: Sequence[str]) -> bool:
    """Whether a router serves, and a gang that it can send requests to while one of these (none: of all) is down. One
    that this inventory does not have counts too: another operator's may."""
    chosen = {gang.name for gang in chosen_gangs(operation.inventory, names)}
    router = operation.serving_router()
    if router is None:
        return False
    views = [view for view in operation.glance() if view.serves]
    serving = serving_of(router, views, views)
    return bool(serving) and not alone(chosen, serving)


Resumed = tuple[tuple[GangView, ...], tuple[str, ...]]
"""The gangs that were restarted, as they were seen last; and what is left for the operator to do, as text."""


def _who_serves(router: Router | None, ready: Sequence[GangView]) -> Serving:
    """Whom requests go to: those that the router has, which must answer before a stop, or these gangs themselves."""
    if router is not None:
        return serving_of(router, ready, ready)
    return {view.name: names_of(view) for view in ready}


def resume(operation: Operation, names: Sequence[str], watcher: Watcher, *, command: str, timeout_s: float) -> Resumed:
    """Finish interrupted work on the chosen gangs that no command holds. timeout_s: for each gang's start.

    First every partly changed gang serves again and is in the router, then `go_on`. A changed plan that not all nodes
    of a gang have yet is given up: the gang keeps its previous one. Raises InputError where nothing was begun,
    Unreachable before anything is done, LockHeld, and what a start raises; what is not finished stays begun.
    """
    fleet = operation.fleet
    gangs = chosen_gangs(operation.inventory, names)
    with ExitStack() as opened:
        specs = {gang.name: gang for gang in operation.as_they_run(gangs)}
        left = _left(operation, specs.values())
        opened.enter_context(_turn_to_finish(operation, left, command, watcher)).announce()
        locks = {begun.gang: opened.enter_context(GangLock(fleet, specs[begun.gang], command)) for begun in left}
        views = {view.name: view for view in _served_again(operation, locks, left, watcher, timeout_s)}
        waiting = [begun for begun in left if begun.gang not in views]
        _give_up(locks, waiting)
    went_on, words = go_on(operation, waiting, command, watcher)
    views |= {view.name: view for view in went_on}
    return tuple(views[name] for name in specs if name in views), words


def _served_again(
    operation: Operation,
    locks: Mapping[str, GangLock],
    left: Iterable[GangOperation],
    watcher: Watcher,
    timeout_s: float,
) -> Iterator[GangView]:
    """Those of the partly changed gangs that serve now."""
    for begun in left:
        if not begun.turning:
            continue
        view = finish(operation.router, locks[begun.gang], begun, watcher, timeout_s=timeout_s)
        if view is not None:
            yield view


def _give_up(locks: Mapping[str, GangLock], left: Iterable[GangOperation]) -> None:
    """What nobody goes on with is no longer begun."""
    for begun in left:
        if not _goes_on(begun):
            locks[begun.gang].finish()


def _turn_to_finish(operation: Operation, left: Sequence[GangOperation], command: str, watcher: Watcher) -> RouterTurn:
    """To announce that the gangs which are down are brought back; it waits for nobody."""
    turning = [begun.gang for begun in left if begun.turning]
    return RouterTurn(operation, turning, command, watcher, patience_s=0.0)


def rehearse_resume(operation: Operation, names: Sequence[str]) -> tuple[GangRehearsal, ...]:
    """What `resume` would do to the gangs on which a command was interrupted. Raises as it does."""
    gangs = chosen_gangs(operation.inventory, names)
    left = {begun.gang: begun for begun in _left(operation, gangs)}
    views = operation.look([gang for gang in gangs if gang.name in left])
    return tuple(would(view, view.plan_id, _would(left[view.name])) for view in views)


def _would(begun: GangOperation) -> str:
    what = f"the {begun.what.value} that {begun.who}@{begun.host} began"
    if begun.turning:
        return f"{what} would be finished"
    return f"{what} would be continued with this gang" if _goes_on(begun) else f"{what} would not reach this gang"


def _left(operation: Operation, gangs: Iterable[GangSpec]) -> tuple[GangOperation, ...]:
    gangs = tuple(gangs)
    left = interrupted(operation.fleet, gangs)
    if not left:
        raise InputError(
            "no model was given, and no interrupted command has left anything to finish",
            where="command line",
            fix="add --model NAME; run `l40s-deploy models` for the list",
        )
    names = {begun.gang for begun in left}
    raising.everybody_answers(operation.look(gang for gang in gangs if gang.name in names))
    return left


def finish(
    router: Router | None, lock: GangLock, begun: GangOperation, watcher: Watcher, *, timeout_s: float
) -> GangView | None:
    """Have a gang serve whose restart was interrupted, and be in the router, where there is one. lock: is held.

    None where it had not come to the stop: it serves the run that it had, and nothing is lost.
    """
    fleet, gang = lock.fleet, lock.gang
    (view,) = see(fleet, [gang])
    if view.run_id == begun.was_run and view.serves:
        rejoin(router, [view], watcher)
        lock.begin(replace(begun, turning=False))
        return None
    watcher.step(gang.name, f"finishing the {begun.what.value} that {begun.who}@{begun.host} began")
    if view.running and not begun.lets_in(view.run_id):
        watcher.step(gang.name, "its gate came to no verdict on the new plan: returning to the plan before")
        leave_router(router, view)
        stop(fleet, [gang], watcher, now=False)
    elif view.state is GangState.DEGRADED and not view.serves:
        stop(fleet, [gang], watcher, now=True)
    view = _serving_again(fleet, gang, begun, watcher, timeout_s)
    rejoin(router, [view], watcher)
    lock.finish()
    return view


def _serving_again(fleet: Fleet, gang: GangSpec, begun: GangOperation, watcher: Watcher, timeout_s: float) -> GangView:
    """With the plan that all its nodes hold; where they hold several, or it does not come up, with the one before."""
    now = facts_of_now(fleet, watcher.step)

    def start(run_id: str = "") -> GangView:
        plan = staged_plan(fleet, gang, run_id=run_id).again(now, going_back=bool(run_id))
        return raising.raise_all(fleet, [plan], watcher, timeout_s=timeout_s)[0]

    if begun.unjudged:
        return start(begun.was_run)
    try:
        plan_id = staged_plan(fleet, gang).plan_id
    except InputError:
        watcher.step(gang.name, "not all of its nodes have the new plan; restoring the one before")
        return start(begun.was_run)
    try:
        return start()
    except DeployError as failure:
        with suppress(InputError):  # not all of its nodes had the plan before: this failure is what counts
            if begun.what is OperationKind.CHANGE and staged_plan(fleet, gang, run_id=begun.was_run).plan_id != plan_id:
                watcher.step(gang.name, f"{failure.where}: {failure.what}; restoring the plan before")
                return start(begun.was_run)
        raise


def _goes_on(begun: GangOperation) -> bool:
    """A rolling restart does with the gangs that it had not reached: others serve behind the router meanwhile."""
    return begun.what is OperationKind.ROLLING and not begun.options.get("without_router")


_SECONDS = ("timeout_s", "hung_after_s", "wait_s")
"""Of a command's options, those that count for whoever finishes it. What it runs here and which findings it sets aside
are that operator's own word, and no node's."""


def _options(kept: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds that a command may wait, and whether it drains, as the nodes keep them; what is none is left out."""
    seconds = {name: float(kept[name]) for name in _SECONDS if type(kept.get(name)) in (int, float)}
    known: dict[str, Any] = {name: value for name, value in seconds.items() if 0 < value < MOST_SECONDS}
    return known | ({"now": kept["now"]} if isinstance(kept.get("now"), bool) else {})


def go_on(operation: Operation, waiting: Sequence[GangOperation], command: str, watcher: Watcher) -> Resumed:
    """Restart the gangs that an interrupted rolling restart had not reached, by its options, as far as they are ones of
    this release. What else was not reached serves as before, until its own command is repeated."""
    words = tuple(
        f"{begun.gang} was not reached and serves as before: for its {begun.what.value}, run `{begun.command}` again,"
        " for it alone"
        for begun in waiting
        if not _goes_on(begun)
    )
    rolling = [begun for begun in waiting if _goes_on(begun)]
    if not rolling:
        return (), words
    gangs = tuple(begun.gang for begun in rolling)
    request = RestartRequest(verb=ROLLING, gangs=gangs, command=command, **_options(rolling[0].options))
    return restart(operation, request, watcher).views, words


def forget_begun(operation: Operation, gangs: Iterable[str], command: str) -> None:
    """Remove the records of what was begun on these gangs: they serve. Skip gangs locked by another command."""
    names = set(gangs)
    for gang in (member for member in operation.inventory.gangs if member.name in names):
        with suppress(DeployError), GangLock(operation.fleet, gang, command) as lock:
            lock.finish()
