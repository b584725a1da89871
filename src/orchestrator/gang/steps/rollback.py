"""`rollback`: each gang goes back to the plan that it had before the one that it has, one gang after the other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from orchestrator.gang.downtime import expected_downtime
from orchestrator.gang.history import plan_before
from orchestrator.gang.operations import OperationKind
from orchestrator.gang.steps import raising
from orchestrator.gang.steps.checks import refuse_starts
from orchestrator.gang.steps.guard.relaunch import facts_of_now
from orchestrator.gang.steps.locks import GangLock
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.replay import Staged, staged_plan
from orchestrator.gang.steps.restart import RestartResult, RestartWatcher
from orchestrator.gang.steps.restart_sequence import Address, GangRestart, RestartSequence, RestartStep, put_back
from orchestrator.gang.steps.router.routing import Router, take_in_serving
from orchestrator.gang.steps.status.history import history
from orchestrator.gang.steps.status.reports import as_they_run, see
from orchestrator.gang.view import GangView
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.errors import DeployError, InputError
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.remote.fleet import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackRequest:
    """drain_s: for a gang's requests; timeout_s: for its start."""

    gangs: tuple[str, ...] = ()
    drain_s: float = 1800.0
    timeout_s: float = 3600.0
    accept: tuple[str, ...] = ()
    """Findings that do not forbid it, `ID` or `ID@node`."""
    command: str = "rollback"


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPlans:
    """One gang: the plan that it has and the one before, as its nodes have kept both."""

    gang: GangSpec
    now: Staged
    before: Staged


def roll_back(inventory: Inventory, request: RollbackRequest, watcher: RestartWatcher) -> RestartResult:
    """Have the chosen gangs serve their previous plan, as it was; one that does not come up on it keeps the one it has.

    Raises before anything is stopped: Unreachable, LockHeld, InputError where no other plan is kept, what the checks of
    the start refuse. Later what a start raises, with what became of the gang.
    """
    begin = time.monotonic()
    gangs = chosen_gangs(inventory, request.gangs)
    with Fleet(inventory.nodes) as fleet, ExitStack() as opened:
        views = see(fleet, gangs)
        raising.everybody_answers(views)
        locks = [opened.enter_context(GangLock(fleet, gang, request.command)) for gang in gangs]
        backs = previous_plans(inventory, fleet, gangs)
        refuse_starts(fleet, [back.before for back in backs], watcher, accept=request.accept)
        router = opened.enter_context(Router(inventory.router)) if inventory.router is not None else None
        if router is not None and not router.view().serves:
            router = None
        if router is not None:
            take_in_serving(router, fleet, inventory, watcher)
        done: list[GangView] = []
        with Operation(OperationKind.CHANGE, request.command, views, locks) as operation:
            turns = RestartSequence(fleet, router, watcher, operation)
            for back, view in zip(backs, views, strict=True):
                watcher.downtime(expected_downtime(view, back.now.drain_s))
                done += turns.take(_turn(turns, back, view, request)).views
        return RestartResult(views=tuple(done), down_s=time.monotonic() - begin)


def previous_plans(inventory: Inventory, fleet: Fleet, gangs: Sequence[GangSpec]) -> list[RollbackPlans]:
    """Raises InputError where a gang's nodes have kept no other plan."""
    kept = {one.gang: one.runs for one in history(inventory, tuple(gang.name for gang in gangs))}
    backs = []
    for gang in gangs:
        now = staged_plan(fleet, as_they_run(fleet, [gang])[0])
        before = plan_before(kept[gang.name], now.plan_id)
        if before is None:
            raise InputError(
                f"its nodes have no recorded run of a plan other than {now.plan_id}",
                where=f"gang {gang.name}",
                fix="see the recorded runs: l40s-deploy history; or plan again: l40s-deploy up --model NAME --gang"
                f" {gang.name}",
            )
        backs.append(RollbackPlans(gang=gang, now=now, before=staged_plan(fleet, gang, run_id=before.run_id)))
    return backs


def _turn(turns: RestartSequence, back: RollbackPlans, view: GangView, request: RollbackRequest) -> GangRestart:
    def failed(step: RestartStep) -> str:
        if step in (RestartStep.ASIDE, RestartStep.STOP):
            return f"{back.gang.name} was returning to plan {back.before.plan_id}"
        return _keep(turns, back, request)

    return GangRestart(
        places=(
            Address(
                gang=back.gang,
                url=back.now.service_url,
                serving=bool(view.service_healthy),
                then=back.before.service_url,
            ),
        ),
        start=(back.before.rising(going_back=True, of_now=facts_of_now(turns.fleet, turns.watcher)),),
        drain_s=request.drain_s,
        timeout_s=request.timeout_s,
        check=lambda: refuse_starts(turns.fleet, [back.before], turns.watcher, accept=request.accept),
        failed=failed,
    )


def _keep(turns: RestartSequence, back: RollbackPlans, request: RollbackRequest) -> str:
    """Start its current plan again; returns the outcome as text."""
    try:
        raising.raise_all(
            turns.fleet,
            [back.now.rising(going_back=True, of_now=facts_of_now(turns.fleet, turns.watcher))],
            turns.watcher,
            timeout_s=request.timeout_s,
        )
        put_back(turns.router, [Address(gang=back.gang, url=back.now.service_url)], turns.watcher)
    except DeployError as second:
        return f"starting plan {back.now.plan_id} again failed too: {second.where}: {second.what}"
    return f"{back.gang.name} is back on plan {back.now.plan_id}"
