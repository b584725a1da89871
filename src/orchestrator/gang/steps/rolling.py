"""`restart --rolling`: gang by gang, while the others serve.

Remove from the router, drain, stop, start, canary, add, next. The first gang that does not come up ends it: the
others keep serving.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from orchestrator.gang.downtime import expected_downtime
from orchestrator.gang.operations import OperationKind
from orchestrator.gang.steps import raising
from orchestrator.gang.steps.checks import refuse_starts
from orchestrator.gang.steps.guard.relaunch import facts_of_now
from orchestrator.gang.steps.locks import GangLock
from orchestrator.gang.steps.operation import Operation, kept
from orchestrator.gang.steps.replay import Staged, staged_plan
from orchestrator.gang.steps.restart_sequence import Address, GangRestart, RestartSequence
from orchestrator.gang.steps.router.routing import Router, take_in_serving, wanted_router
from orchestrator.gang.steps.status.reports import as_they_run, see
from orchestrator.gang.view import GangView
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.errors import InputError
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.remote.fleet import Fleet, StragglerWait


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingRequest:
    """max_unavailable: gangs that may be down at one time. without_router: whoever sends requests looks after
    himself. drain_s: how long one gang's running requests are waited for; timeout_s: for one gang's start."""

    gangs: tuple[str, ...] = ()
    max_unavailable: int = 1
    without_router: bool = False
    drain_s: float = 1800.0
    hung_after_s: float | None = None
    """For the start: how long its engine may show no progress before it counts as hung; None: as it was."""
    timeout_s: float = 3600.0
    accept: tuple[str, ...] = ()
    """Findings that do not forbid it, `ID` or `ID@node`."""
    command: str = "restart --rolling"


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingResult:
    """views: of the gangs that were restarted, as they were seen last; seconds: for all of it."""

    views: tuple[GangView, ...]
    seconds: float


def can_roll(inventory: Inventory, names: Sequence[str]) -> bool:
    """Whether a router serves, and a gang that it can send requests to while one of these (none: of all) is down."""
    if inventory.router is None or len(inventory.gangs) < 2:
        return False
    chosen = {gang.name for gang in chosen_gangs(inventory, names)}
    with Router(inventory.router) as router, Fleet(inventory.nodes) as fleet:
        if not router.view().serves:
            return False
        serving = {view.name for view in see(fleet, inventory.gangs, patience=StragglerWait()) if view.serves}
    return len(serving) > min(1, len(chosen & serving))


def roll(inventory: Inventory, request: RollingRequest, watcher: raising.Watcher) -> RollingResult:
    """Restart the chosen gangs one after the other.

    Raises before anything is stopped: InputError with one gang only, without a router, or where too few serve;
    Unreachable, LockHeld, what the checks of the starts refuse. Later: what the gang that did not come back raises,
    with words on where the others are.
    """
    begin = time.monotonic()
    gangs = chosen_gangs(inventory, request.gangs)
    with Fleet(inventory.nodes) as fleet, ExitStack() as opened:
        gangs = as_they_run(fleet, gangs)
        raising.everybody_answers(see(fleet, gangs))
        plans = [staged_plan(fleet, gang).hung_after(request.hung_after_s) for gang in gangs]
        _refuse_one_gang(inventory, fleet, plans)
        router = None if request.without_router else opened.enter_context(Router(wanted_router(inventory)))
        if router is not None:
            router.workers()  # it must answer before anything is stopped
        serving = {view.name for view in see(fleet, inventory.gangs) if view.serves}
        _refuse_too_few(inventory, serving, request)
        locks = [opened.enter_context(GangLock(fleet, gang, request.command)) for gang in gangs]
        if router is not None:
            behind = take_in_serving(router, fleet, inventory, watcher)
            _refuse_too_few(inventory, behind, request, "serve behind the router")
        refuse_starts(fleet, plans, watcher, accept=request.accept)
        done: list[GangView] = []
        with Operation(OperationKind.ROLLING, request.command, see(fleet, gangs), locks, kept(request)) as operation:
            turns = RestartSequence(fleet, router, watcher, operation)
            for batch in _batches(_worst_first(fleet, plans), request.max_unavailable):
                done += turns.take(_turn(fleet, batch, done, gangs, request, watcher)).views
        return RollingResult(views=tuple(done), seconds=time.monotonic() - begin)


def _turn(
    fleet: Fleet,
    batch: Sequence[Staged],
    done: Sequence[GangView],
    gangs: Sequence[GangSpec],
    request: RollingRequest,
    watcher: raising.Watcher,
) -> GangRestart:
    serving = {view.name for view in see(fleet, [plan.gang for plan in batch]) if view.service_healthy}
    return GangRestart(
        places=tuple(Address(gang=one.gang, url=one.service_url, serving=one.gang.name in serving) for one in batch),
        start=tuple(one.rising(of_now=facts_of_now(fleet, watcher)) for one in batch),
        drain_s=request.drain_s,
        timeout_s=request.timeout_s,
        check=lambda: refuse_starts(fleet, batch, watcher, accept=request.accept),
        failed=lambda _: _where_it_ended(batch, done, gangs),
    )


def _refuse_one_gang(inventory: Inventory, fleet: Fleet, plans: Sequence[Staged]) -> None:
    if len(inventory.gangs) > 1:
        return
    (view,) = see(fleet, inventory.gangs)
    raise InputError(
        f"a single gang can't be restarted without downtime: {expected_downtime(view, plans[0].drain_s).words}",
        where=f"{inventory.path}: --rolling",
        fix=f"accept the downtime with `l40s-deploy restart {view.name}`, or add a second gang behind a router",
    )


def _refuse_too_few(inventory: Inventory, serving: Collection[str], request: RollingRequest, do: str = "serve") -> None:
    """Somebody must serve while others don't."""
    chosen = {gang.name for gang in chosen_gangs(inventory, request.gangs)}
    at_once = min(request.max_unavailable, len(chosen & set(serving)))
    if request.max_unavailable < 1 or len(serving) - at_once < 1:
        raise InputError(
            f"{len(serving)} of {len(inventory.gangs)} gangs {do} ({', '.join(sorted(serving)) or 'none'}); with"
            f" {request.max_unavailable} down at a time, none would be left",
            where="--rolling",
            fix="bring the others up first, choose a smaller --max-unavailable, or restart without --rolling",
        )


def _worst_first(fleet: Fleet, plans: Sequence[Staged]) -> list[Staged]:
    """A gang that does not serve costs nothing to restart, and may serve for the next ones."""
    healthy = {view.name: bool(view.service_healthy) for view in see(fleet, [plan.gang for plan in plans])}
    return sorted(plans, key=lambda plan: healthy[plan.gang.name])


def _batches(plans: Sequence[Staged], size: int) -> Iterator[Sequence[Staged]]:
    for begin in range(0, len(plans), size):
        yield plans[begin : begin + size]


def _where_it_ended(batch: Sequence[Staged], done: Sequence[GangView], gangs: Sequence[GangSpec]) -> str:
    """The other gangs' state, as text."""
    at = [plan.gang.name for plan in batch]
    before = [view.name for view in done]
    rest = [gang.name for gang in gangs if gang.name not in (*at, *before)]
    words = [f"restarted: {', '.join(before)}"] if before else []
    words += [f"not restarted: {', '.join(rest)}"] if rest else []
    return f"the rolling restart stopped at {', '.join(at)}; {'; '.join(words) or 'no other gang'}"
