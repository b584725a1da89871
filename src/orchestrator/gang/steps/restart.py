"""The verbs that restart gangs: which plan each wants, and in which order. `restart_sequence` has the steps.

restart        the plan that its nodes have, all gangs in one turn
--rolling      the same, gang by gang, while the others serve behind the router
--maintenance  the same, gang by gang, with work on the nodes in between
rollback       the plan before, gang by gang; where it does not come up, the one that it had
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from orchestrator.gang.operations import OperationKind
from orchestrator.gang.steps import raising
from orchestrator.gang.steps.checks import refuse_starts
from orchestrator.gang.steps.locks import GangLock
from orchestrator.gang.steps.operation import Operation, kept
from orchestrator.gang.steps.raising import Watcher
from orchestrator.gang.steps.replay import Staged, facts_of_now, staged_plan
from orchestrator.gang.steps.restart_sequence import GangRestart, RestartSequence
from orchestrator.gang.steps.router.routing import Router, serving_router, take_in_serving, wanted_router
from orchestrator.gang.steps.status.reports import as_they_run, see
from orchestrator.gang.view import GangView
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.errors import FindingsError, InputError, NodeError
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.planning.steps.changes import GangRehearsal, would
from orchestrator.remote.fleet import Fleet, StragglerWait


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartVerb:
    """What one verb wants.

    what:     as the nodes remember it
    done:     what was done to a gang afterwards, as text
    together: all gangs at a time, whose requests the engines alone wait for; else one after the other
    rolls:    others must serve meanwhile, and those that do not serve come first
    before:   older plans of these gangs, which they are to run; one that does not come up starts the one that it had
              again. None: the plans that they have
    work:     on the nodes of a gang, between stop and start
    """

    what: OperationKind
    done: str = "restarted"
    together: bool = False
    rolls: bool = False
    before: Callable[[Inventory, Fleet, Sequence[Staged]], list[Staged]] | None = None
    work: Callable[[Fleet, RestartRequest, Watcher], Callable[[Staged], None]] | None = None


RESTART = RestartVerb(what=OperationKind.RESTART, together=True)
ROLLING = RestartVerb(what=OperationKind.ROLLING, rolls=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRequest:
    """now: without draining. timeout_s: for one start.
    hung_after_s: how long a started engine may show no progress before it counts as hung; None: as it was.
    accept: findings that do not forbid the stop, `ID` or `ID@node`.

    Rolling: without_router: whoever sends requests looks after himself. Maintenance: run, reboots, wait_s: see
    `NodesWork`."""

    verb: RestartVerb = RESTART
    gangs: tuple[str, ...] = ()
    command: str = "restart"
    now: bool = False
    timeout_s: float = 3600.0
    hung_after_s: float | None = None
    accept: tuple[str, ...] = ()
    without_router: bool = False
    run: str = ""
    reboots: bool = False
    wait_s: float = 3600.0

    def __post_init__(self) -> None:
        """Raises InputError for a command line whose quotes are open."""
        try:
            shlex.split(self.run)
        except ValueError as wrong:
            raise InputError(f"can't be parsed: {wrong}", where="--run", fix="close the quotes") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartResult:
    """The gangs as they were seen last, and seconds from the first stop until all had served again."""

    views: tuple[GangView, ...]
    seconds: float


def restart(inventory: Inventory, request: RestartRequest, watcher: Watcher) -> RestartResult:
    """Have the chosen gangs stop, and serve again by the plan that the verb wants, behind the router.

    Raises before anything is stopped: Unreachable, LockHeld, InputError where a gang's nodes have no such plan or too
    few gangs would serve, what the checks of the starts refuse. Later what a step raises, with what became of them.
    """
    verb = request.verb
    with Fleet(inventory.nodes) as fleet, ExitStack() as opened:
        specs, _ = _answering(inventory, fleet, request)
        why = verb.what.value if verb.work else ""
        locks = [opened.enter_context(GangLock(fleet, gang, request.command, why=why)) for gang in specs]
        gangs = _wanted(inventory, fleet, specs, see(fleet, specs), request, watcher)
        router = opened.enter_context(_router(inventory, fleet, request, gangs))
        if router is not None:
            _send_elsewhere(router, inventory, fleet, request, gangs, watcher)
        _refuse(fleet, gangs, request, watcher)
        if verb.together and len(gangs) > 1:
            names = ", ".join(one.name for one in gangs)
            watcher.step(names, "all of these stop at the same time; each serves again once it has started")
        views = [one.view for one in gangs]
        with Operation(verb.what, request.command, views, locks, kept(request)) as operation:
            begin = time.monotonic()
            steps = RestartSequence(
                inventory=inventory,
                fleet=fleet,
                router=router,
                watcher=watcher,
                operation=operation,
                done=verb.done,
                timeout_s=request.timeout_s,
                together=verb.together,
                now=request.now,
                returns="plan" if verb.before else "",
                check=lambda batch: _refuse(fleet, batch, request, watcher),
                tells=not verb.rolls,
                work=verb.work(fleet, request, watcher) if verb.work else None,
            )
            return RestartResult(views=steps.run(gangs), seconds=time.monotonic() - begin)


def rehearse_restart(inventory: Inventory, request: RestartRequest, watcher: Watcher) -> tuple[GangRehearsal, ...]:
    """What `restart` would do; takes no lock and changes nothing. Raises what it would raise before it stops a gang."""
    with Fleet(inventory.nodes) as fleet, ExitStack() as opened:
        specs, views = _answering(inventory, fleet, request)
        gangs = _wanted(inventory, fleet, specs, views, request, watcher)
        opened.enter_context(_router(inventory, fleet, request, gangs))
        _refuse(fleet, gangs, request, watcher)
    after = ", one gang after the other" if len(gangs) > 1 and not request.verb.together else ""
    return tuple(
        would(one.view, one.check.plan_id, f"{_aim(one)}{after}; {one.downtime(now=request.now)}") for one in gangs
    )


def _aim(one: GangRestart) -> str:
    if one.before is None or one.before is one.check:
        return "would be restarted"
    return f"would return from plan {one.before.plan_id} to plan {one.check.plan_id} ({one.check.model})"


def _answering(
    inventory: Inventory, fleet: Fleet, request: RestartRequest
) -> tuple[Sequence[GangSpec], Sequence[GangView]]:
    """The gangs on the nodes where they are to run. Raises where one of these does not answer."""
    chosen = chosen_gangs(inventory, request.gangs)
    specs = chosen if request.verb.before else as_they_run(fleet, chosen)
    views = see(fleet, specs)
    raising.everybody_answers(views)
    return specs, views


def _wanted(
    inventory: Inventory,
    fleet: Fleet,
    specs: Sequence[GangSpec],
    views: Sequence[GangView],
    request: RestartRequest,
    watcher: Watcher,
) -> list[GangRestart]:
    """The gangs in their order, each with the plan that the verb wants."""
    befores = [staged_plan(fleet, gang).hung_after(request.hung_after_s) for gang in as_they_run(fleet, specs)]
    wanted = request.verb.before(inventory, fleet, befores) if request.verb.before else befores
    found = [
        GangRestart(
            gang=gang,
            view=view,
            before=before,
            check=plan,
            start=plan.rising(going_back=request.verb.before is not None, of_now=facts_of_now(fleet, watcher)),
        )
        for gang, view, before, plan in zip(specs, views, befores, wanted, strict=True)
    ]
    # one that does not serve costs nothing to restart, and may serve for the next ones
    return sorted(found, key=lambda one: bool(one.view.service_healthy)) if request.verb.rolls else found


@contextmanager
def _router(
    inventory: Inventory, fleet: Fleet, request: RestartRequest, gangs: Sequence[GangRestart]
) -> Iterator[Router | None]:
    """What requests are sent elsewhere by. Raises where a rolling restart would leave nobody to serve them."""
    if not request.verb.rolls:
        with serving_router(None if request.verb.together else inventory.router) as router:
            yield router
        return
    if len(inventory.gangs) < 2:
        raise InputError(
            f"a single gang can't be restarted without downtime: {gangs[0].downtime()}",
            where=f"{inventory.path}: --rolling",
            fix=f"accept the downtime with `l40s-deploy restart {gangs[0].name}`, or add a second gang behind a router",
        )
    with ExitStack() as opened:
        router = None if request.without_router else opened.enter_context(Router(wanted_router(inventory)))
        if router is not None:
            router.workers()  # it must answer before anything is stopped
        serving = {view.name for view in see(fleet, inventory.gangs) if view.serves}
        _refuse_too_few(inventory, serving, request)
        yield router


def _send_elsewhere(
    router: Router,
    inventory: Inventory,
    fleet: Fleet,
    request: RestartRequest,
    gangs: Sequence[GangRestart],
    watcher: Watcher,
) -> None:
    """The router knows every gang that could answer meanwhile; where there is none, that is refused or said."""
    behind = take_in_serving(router, fleet, inventory, watcher)
    if request.verb.rolls:
        _refuse_too_few(inventory, behind, request, "serve behind the router")
    elif not all(behind - {one.name} for one in gangs):
        names = ", ".join(one.name for one in gangs)
        watcher.step(names, "no other gang serves behind the router: requests fail until this one is back")


def _refuse_too_few(inventory: Inventory, serving: Collection[str], request: RestartRequest, do: str = "serve") -> None:
    """Somebody must serve while others don't."""
    chosen = {gang.name for gang in chosen_gangs(inventory, request.gangs)}
    if len(serving) - bool(chosen & set(serving)) < 1:
        raise InputError(
            f"{len(serving)} of {len(inventory.gangs)} gangs {do} ({', '.join(sorted(serving)) or 'none'}); with"
            " one down at a time, none would be left",
            where="--rolling",
            fix="bring the others up first, or restart without --rolling",
        )


def can_roll(inventory: Inventory, names: Sequence[str]) -> bool:
    """Whether a router serves, and a gang that it can send requests to while one of these (none: of all) is down."""
    if inventory.router is None or len(inventory.gangs) < 2:
        return False
    chosen = {gang.name for gang in chosen_gangs(inventory, names)}
    with serving_router(inventory.router) as router, Fleet(inventory.nodes) as fleet:
        if router is None:
            return False
        serving = {view.name for view in see(fleet, inventory.gangs, patience=StragglerWait()) if view.serves}
    return len(serving) > min(1, len(chosen & serving))


def _refuse(fleet: Fleet, gangs: Sequence[GangRestart], request: RestartRequest, watcher: Watcher) -> None:
    """Raise what forbids the start that follows, unless that is accepted."""
    try:
        refuse_starts(fleet, [one.check for one in gangs], watcher, accept=request.accept)
    except (FindingsError, NodeError) as refused:
        if request.verb.work:
            names = " ".join(one.name for one in gangs)
            refused.fix += (
                f"; if this work repairs it, and it can't be accepted: `l40s-deploy down {names}`, and after"
                f" the work `l40s-deploy restart {names}`"
            )
        raise
