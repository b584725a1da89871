"""`restart`: stops and starts a gang, all of its ranks, with its current plan."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from orchestrator.gang.downtime import Downtime, expected_downtime
from orchestrator.gang.operations import OperationKind
from orchestrator.gang.steps import raising
from orchestrator.gang.steps.checks import refuse_starts
from orchestrator.gang.steps.down import StopResult, stop_gangs
from orchestrator.gang.steps.guard.relaunch import facts_of_now
from orchestrator.gang.steps.locks import GangLock, still_ours
from orchestrator.gang.steps.operation import Operation, kept
from orchestrator.gang.steps.replay import Staged, staged_plan
from orchestrator.gang.steps.router.routing import rejoin
from orchestrator.gang.steps.status.reports import as_they_run, see
from orchestrator.gang.steps.weights_ahead import weights_ahead
from orchestrator.gang.view import GangView
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.errors import DeployError, GangFailed
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.protocol.report import Cause
from orchestrator.remote.fleet import Fleet, StragglerWait

TO_END = StragglerWait(least_s=45.0)
"""With a node whose disk hangs, once the others have ended. A node takes 32 s at most for its processes, its memory and
its fellows (node/agent/ending.py)."""


class RestartWatcher(raising.Watcher, Protocol):
    """Whoever shows what goes on."""

    def downtime(self, expected: Downtime) -> None:
        """Before anything is stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRequest:
    """now: without draining. timeout_s: for the start of each gang."""

    gangs: tuple[str, ...] = ()
    now: bool = False
    command: str = "restart"
    hung_after_s: float | None = None
    """For the start: how long its engine may show no progress before it counts as hung; None: as it was."""
    timeout_s: float = 3600.0
    accept: tuple[str, ...] = ()
    """Findings that do not forbid it, `ID` or `ID@node`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartResult:
    """The gangs as they were seen last, and how long each did not serve, in seconds, as seen from here."""

    views: tuple[GangView, ...]
    down_s: float


def restart(inventory: Inventory, request: RestartRequest, watcher: RestartWatcher) -> RestartResult:
    """Stop the chosen gangs in their engines' order, and start them with the plan that they had, behind the router.

    Raises before anything is stopped: Unreachable, InputError where there is no plan to start again, LockHeld, and what
    the checks of the start refuse. Later GangFailed where a gang would not end or did not become ready.
    """
    gangs = chosen_gangs(inventory, request.gangs)
    with Fleet([node for gang in gangs for node in gang.nodes]) as fleet, ExitStack() as opened:
        gangs = as_they_run(fleet, gangs)
        views = see(fleet, gangs)
        raising.everybody_answers(views)
        plans = [staged_plan(fleet, gang).hung_after(request.hung_after_s) for gang in gangs]
        held = [opened.enter_context(GangLock(fleet, gang, request.command)) for gang in gangs]
        refuse_starts(fleet, plans, watcher, accept=request.accept)
        for view, plan in zip(views, plans, strict=True):
            watcher.downtime(expected_downtime(view, 0.0 if request.now else plan.drain_s))
        if len(gangs) > 1:
            names = ", ".join(gang.name for gang in gangs)
            watcher.step(names, "all of these stop at the same time; each serves again once it has started")
        options = kept(request)
        with Operation(OperationKind.RESTART, request.command, see(fleet, gangs), held, options) as operation:
            operation.turn(gang.name for gang in gangs)
            restarted = again(fleet, plans, watcher, now=request.now, timeout_s=request.timeout_s)
            rejoin(inventory, restarted.views, watcher)
        return restarted


def again(
    fleet: Fleet,
    plans: Sequence[Staged],
    watcher: raising.Watcher,
    *,
    now: bool,
    timeout_s: float,
    cause: Cause | None = None,
) -> RestartResult:
    """Stop and start gangs whose locks are held.

    cause: the failure that they are restarted for; the nodes still say it where the restart does not get so far
    that another run is staged.
    """
    begin = time.monotonic()
    start = [plan.rising(of_now=facts_of_now(fleet, watcher)) for plan in plans]
    with weights_ahead(fleet, [] if now else [one.reads for one in start]):
        stop(fleet, [plan.gang for plan in plans], watcher, now=now, cause=cause)
    raised = raising.raise_all(fleet, start, watcher, timeout_s=timeout_s)
    return RestartResult(views=raised.views, down_s=time.monotonic() - begin)


def stop(
    fleet: Fleet, gangs: Sequence[GangSpec], watcher: raising.Watcher, *, now: bool, cause: Cause | None = None
) -> None:
    """Stop gangs that are to start again. Raises LockHeld, GangFailed, or why a node can't be asked."""
    still_ours(fleet, gangs)
    for gang in gangs:
        watcher.step(gang.name, "stopping" + (" at once" if now else ""))
    refuse_leftovers(stop_gangs(fleet, gangs, now=now, cause=cause, patience=TO_END))


def refuse_leftovers(stopped: Sequence[StopResult]) -> None:
    """Nothing is started beside something that would not end. Raises GangFailed, or why a node can't be asked."""
    for node in stopped:
        if node.error is not None:
            raise _half_way(node.error)
        if not node.clean:
            what, fix = _left(node)
            raise GangFailed(f"{what}; nothing was started", where=f"gang {node.gang}: {node.node}", fix=fix)


def _left(node: StopResult) -> tuple[str, str]:
    """What prevents a start, and the fix."""
    stuck = "check it with `ps` and `dmesg` (a stuck driver?), then run the same command again"
    if node.left_behind:
        return f"process {', '.join(map(str, node.left_behind))} does not exit", stuck
    if node.alive:
        return "its agent does not exit", stuck
    somebody = (
        "stop the process that holds it (`nvidia-smi`; if none is listed, check `dmesg` for a stuck driver), "
        "then run the same command again"
    )
    return f"GPU memory is still held: {'; '.join(node.held)}", somebody


def _half_way(failure: DeployError) -> DeployError:
    failure.fix = f"{failure.fix}; the gang is stopped on all reachable nodes. Run the same command again to continue"
    return failure
