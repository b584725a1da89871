"""`restart --resume`: what an interrupted command has begun is finished, from wherever the nodes are now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.gang.operations import GangOperation, OperationKind
from orchestrator.gang.steps import raising
from orchestrator.gang.steps.guard.relaunch import facts_of_now
from orchestrator.gang.steps.locks import GangLock
from orchestrator.gang.steps.maintenance import MaintenanceRequest, maintain
from orchestrator.gang.steps.replay import staged_plan
from orchestrator.gang.steps.restart import RestartRequest, RestartWatcher, restart, stop
from orchestrator.gang.steps.rolling import RollingRequest, roll
from orchestrator.gang.steps.router.routing import rejoin
from orchestrator.gang.steps.status.reports import as_they_run, see
from orchestrator.gang.steps.status.unfinished import interrupted
from orchestrator.gang.view import GangView
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.errors import DeployError, InputError
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.remote.fleet import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequest:
    """timeout_s: for each gang's start."""

    gangs: tuple[str, ...] = ()
    command: str = "restart --resume"
    timeout_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeResult:
    """views: the gangs that were concerned, as they were seen last. words: what is left for the operator to do."""

    views: tuple[GangView, ...] = ()
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Interrupted:
    """finished: serve after their turn; waiting: what was begun on gangs that still serve the run that they had."""

    finished: Mapping[str, GangView] = field(default_factory=dict)
    waiting: Sequence[GangOperation] = ()


def resume(inventory: Inventory, request: ResumeRequest, watcher: RestartWatcher) -> ResumeResult:
    """Finish interrupted work on the chosen gangs that no command holds; does nothing if there is none.

    First every partly changed gang serves again and is in the router, then the operation continues with those that it
    had not reached. A changed plan that not all nodes of a gang have yet is given up: the gang keeps its previous one.
    Raises Unreachable before anything is done, LockHeld, and what a start raises; what is not finished stays begun.
    """
    gangs = chosen_gangs(inventory, request.gangs)
    with Fleet([node for gang in gangs for node in gang.nodes]) as fleet:
        gangs = as_they_run(fleet, gangs)
        left = interrupted(fleet, gangs)
        concerned = [gang for gang in gangs if gang.name in {begun.gang for begun in left}]
        raising.everybody_answers(see(fleet, concerned))
        found = _half_way(inventory, fleet, concerned, left, request, watcher)
    went_on, words = _go_on(inventory, found.waiting, request, watcher)
    views = {**found.finished, **{view.name: view for view in went_on}}
    return ResumeResult(views=tuple(views[gang.name] for gang in gangs if gang.name in views), words=words)


def _half_way(
    inventory: Inventory,
    fleet: Fleet,
    gangs: Sequence[GangSpec],
    left: Sequence[GangOperation],
    request: ResumeRequest,
    watcher: RestartWatcher,
) -> _Interrupted:
    specs = {gang.name: gang for gang in gangs}
    finished: dict[str, GangView] = {}
    waiting: list[GangOperation] = []
    with ExitStack() as opened:
        locks = {gang.name: opened.enter_context(GangLock(fleet, gang, request.command)) for gang in gangs}
        for begun in left:
            view = None
            if begun.turning:
                view = finish(
                    inventory, locks[begun.gang], specs[begun.gang], begun, watcher, timeout_s=request.timeout_s
                )
            if view is None:
                waiting.append(begun)
            else:
                finished[begun.gang] = view
        for begun in waiting if _gives_up(waiting) else ():
            finished[begun.gang] = see(fleet, [specs[begun.gang]])[0]
            locks[begun.gang].finish()
    return _Interrupted(finished=finished, waiting=waiting)


def finish(
    inventory: Inventory,
    lock: GangLock,
    gang: GangSpec,
    begun: GangOperation,
    watcher: raising.Watcher,
    *,
    timeout_s: float,
) -> GangView | None:
    """Have a gang serve whose turn was interrupted, and be in the router. lock: is held.

    None where its turn had not come to the stop: it serves the run that it had, and nothing is lost.
    """
    fleet = lock.fleet
    (view,) = see(fleet, [gang])
    if view.run_id == begun.was_run and view.serves:
        rejoin(inventory, [view], watcher)
        lock.begin(replace(begun, turning=False))
        return None
    watcher.step(gang.name, f"finishing the {begun.what.value} that {begun.who}@{begun.host} began")
    if view.state is GangState.DEGRADED and not view.serves:
        stop(fleet, [gang], watcher, now=True)
    view = _serving_again(fleet, gang, begun, watcher, timeout_s)
    rejoin(inventory, [view], watcher)
    lock.finish()
    return view


def _serving_again(
    fleet: Fleet, gang: GangSpec, begun: GangOperation, watcher: raising.Watcher, timeout_s: float
) -> GangView:
    """With the plan that all its nodes hold; where they hold several, or it does not come up, with the one before."""
    now = facts_of_now(fleet, watcher)
    try:
        plan = staged_plan(fleet, gang).rising(of_now=now)
    except InputError:
        plan = staged_plan(fleet, gang, run_id=begun.was_run).rising(going_back=True, of_now=now)
        watcher.step(gang.name, f"not all of its nodes have the new plan; restoring plan {plan.plan_id}")
    try:
        return raising.raise_all(fleet, [plan], watcher, timeout_s=timeout_s).views[0]
    except DeployError as failure:
        if begun.what is not OperationKind.CHANGE:
            raise
        before = staged_plan(fleet, gang, run_id=begun.was_run)
        if before.plan_id == plan.plan_id:
            raise
        watcher.step(gang.name, f"{failure.where}: {failure.what}; restoring plan {before.plan_id}")
        return raising.raise_all(
            fleet, [before.rising(going_back=True, of_now=now)], watcher, timeout_s=timeout_s
        ).views[0]


def _gives_up(waiting: Sequence[GangOperation]) -> bool:
    """The rest of a changed plan is not known to the nodes: only its command can go on."""
    return any(begun.what is OperationKind.CHANGE for begun in waiting)


def _go_on(
    inventory: Inventory, waiting: Sequence[GangOperation], request: ResumeRequest, watcher: RestartWatcher
) -> tuple[tuple[GangView, ...], tuple[str, ...]]:
    if not waiting:
        return (), ()
    if _gives_up(waiting):
        names = ", ".join(begun.gang for begun in waiting)
        return (), (f"{names} still on the previous plan: run `{waiting[0].command}` again to change over",)
    first = waiting[0]
    more: dict[str, Any] = {
        **_known(first),
        "gangs": tuple(begun.gang for begun in waiting if begun.what is first.what),
        "command": request.command,
    }
    go_on: dict[OperationKind, Callable[[], tuple[GangView, ...]]] = {
        OperationKind.ROLLING: lambda: roll(inventory, RollingRequest(**more), watcher).views,
        OperationKind.MAINTENANCE: lambda: maintain(inventory, MaintenanceRequest(**more), watcher).views,
        OperationKind.RESTART: lambda: restart(inventory, RestartRequest(**more), watcher).views,
    }
    return go_on[first.what](), ()


_OPTIONS = {
    OperationKind.ROLLING: RollingRequest,
    OperationKind.MAINTENANCE: MaintenanceRequest,
    OperationKind.RESTART: RestartRequest,
}


def _known(begun: GangOperation) -> dict[str, Any]:
    """The options that were kept, as far as they are ones of this release."""
    known = _OPTIONS[begun.what].__dataclass_fields__  # type: ignore[attr-defined]
    return {name: value for name, value in begun.options.items() if name in known}
