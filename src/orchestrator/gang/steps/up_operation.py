"""What `up` is asked for, what it has before it starts anything, and what it results in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from orchestrator.doctor.steps.doctor import refuse
from orchestrator.doctor.steps.plan_findings import examined
from orchestrator.gang.steps.locks import GangLock
from orchestrator.gang.steps.operation import AskedOperation
from orchestrator.gang.steps.raising import Watcher, everybody_answers
from orchestrator.gang.steps.staging import Staged, staging_requests
from orchestrator.gang.steps.status.reports import views_of
from orchestrator.gang.view import GangView
from orchestrator.model.chosen import chosen_gangs, with_spares
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import GangSpec
from orchestrator.model.plan import GangPlan, Plan
from orchestrator.model.topology import Topology
from orchestrator.planning.plan_file import SettingChange, plan_json
from orchestrator.planning.steps.plan import PlanRequest, launch_scripts, make_plan
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.staging import Asked, StagingRequest
from orchestrator.remote.deadline import ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class Gated:
    """The first gang that is changed. plan: what it is to run; old: id of the plan that it serves; changes: settings
    that differ"""

    here: UpOperation
    plan: Staged
    old: str
    changes: tuple[SettingChange, ...]

    @property
    def gang(self) -> GangSpec:
        """On the nodes that it is to run on."""
        return self.plan.gang


class GateJudge(Protocol):
    """What a gate knows of the old plan, to judge the new one by."""

    def __call__(self, view: GangView, watcher: Watcher) -> None:
        """Of the gang on the new plan. Raises where it is worse, and its verdict is kept either way."""
        ...

    def refused(self, run_id: str, failure: DeployError) -> str:
        """Keep the verdict of a run that failed before it could be judged; the page, '' where it has one already."""
        ...


class GangGate(Protocol):
    """A room's judgement of the first changed gang, before the next one is changed."""

    def before(self, gated: Gated, watcher: Watcher) -> GateJudge:
        """Look at the old plan while it serves."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UpRequest:
    """What an operator asks `up` for.

    timeout_s: from the first step until all gangs are ready
    turn_s:    how long it waits until no other command changes a gang behind the router; None: timeout_s
    all_at_once: without that wait
    turn:      the token of the claim behind the router that its command has for these gangs already; '' for none
    accept:    findings that are set aside, `ID` or `ID@node`
    strict:    findings of severity slow forbid a start too
    replace:   take down gangs that serve another plan even if no other gang serves meanwhile
    hung_after_s: how long a started engine may show no progress before it counts as hung; None: its dialect's default
    why:       for the audit log, where the command does not tell everything
    fewer:     the plan is for fewer nodes than the gang should have
    asked:     what was asked of the gang on all of its nodes, where the plan is for fewer; None: the same as here
    before_go: checks of each gang before its ranks start
    gate:      judges the first gang that is changed; None: what comes up is taken
    """

    plan: PlanRequest
    command: str = "up"
    timeout_s: float = 3600.0
    turn_s: float | None = None
    all_at_once: bool = False
    turn: str = ""
    undo_on_interrupt: bool = False
    accept: tuple[str, ...] = ()
    strict: bool = False
    replace: bool = False
    hung_after_s: float | None = None
    before_go: tuple[BeforeGoCheck, ...] = ()
    gate: GangGate | None = None
    why: str = ""
    asked: Asked | None = None
    fewer: bool = False

    @property
    def to_repeat(self) -> Asked:
        """What the nodes keep in order to plan the gang again on all of its nodes. Degrees chosen for fewer nodes do
        not apply there."""
        if self.asked is not None:
            return self.asked
        asked, typed = replace(self.plan.asked, accept=self.accept), Path(self.plan.model)
        if typed.suffix in (".yml", ".yaml"):
            asked = replace(asked, model=str(typed.resolve()))
        return asked.on_other_nodes() if self.fewer else asked


@dataclass(frozen=True, slots=True, kw_only=True)
class UpResult:
    """The result of `up`: the plan, the gangs as they were last seen, those that were ready before, and those that were
    changed over from another plan, in the order of their turns."""

    plan: Plan
    views: tuple[GangView, ...]
    ready_before: frozenset[str]
    seconds: float
    changed: tuple[str, ...] = ()
    router_url: str = ""
    """Where clients find the router that runs; '' where none was looked at."""
    failure: DeployError | None = None
    """Why the router does not send requests to all that serve, or what was begun before could not be finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOperation(AskedOperation):
    """What `up` has before it starts anything: every node of the chosen gangs answers, is locked, and has its part of
    the plan.

    gangs:      the chosen ones, as they are planned
    manned:   by name, the same with the spares that take part in what runs now
    views:      of these gangs, in their order
    others:     the other gangs behind the same router; one whose nodes answered late is seen without them
    locks:      held, by gang; none where nothing may be changed
    topologies: by node name, as the plan saw them
    """

    request: UpRequest
    watcher: Watcher
    gangs: tuple[GangSpec, ...]
    manned: Mapping[str, GangSpec]
    views: tuple[GangView, ...]
    others: tuple[GangView, ...]
    plan: Plan
    locks: Mapping[str, GangLock]
    topologies: Mapping[str, Topology]


@dataclass(frozen=True, slots=True)
class BeforeGoCheck:
    """A room's check of a gang of an operation, as `raising.BeforeGo`. most_s: how long it may take."""

    most_s: float
    check: Callable[[UpOperation, GangSpec, Mapping[str, StagingRequest]], None]


@contextmanager
def prepared(
    operation: AskedOperation, request: UpRequest, watcher: Watcher, *, locked: bool = True
) -> Iterator[UpOperation]:
    """Look, lock and plan; nothing is changed yet. locked: else no lock is taken, and nothing may be changed at all.

    Raises Unreachable, LockHeld, and FindingsError for findings that forbid a start: those of severity stop and,
    where strict, slow.
    """
    inventory, fleet = operation.inventory, operation.fleet
    chosen = chosen_gangs(inventory, request.plan.gangs)
    gangs = tuple(replace(gang, spares=()) for gang in chosen)
    with ExitStack() as opened:
        planning = ahead(lambda: make_plan(inventory, request.plan, fleet))
        views = operation.look(chosen)
        everybody_answers(views)
        manned = {gang.name: gang for gang in map(_as_manned, chosen, views)}
        locks = {
            name: opened.enter_context(GangLock(fleet, gang, request.command, why=request.why))
            for name, gang in manned.items()
            if locked
        }
        planned = planning.result()
        quiet = all(view.state is GangState.ABSENT for view in views)
        plan = _shown(examined(planned, gangs, fleet if quiet else None, accept=request.accept), request, watcher)
        yield UpOperation(
            inventory=inventory,
            fleet=fleet,
            router=operation.router,
            answers=operation.answers,
            request=request,
            watcher=watcher,
            gangs=gangs,
            manned=manned,
            views=views,
            others=_others(operation, manned),
            plan=plan,
            locks=locks,
            topologies=planned.topologies,
        )


def _shown(plan: Plan, request: UpRequest, watcher: Watcher) -> Plan:
    """The plan, which the operator has seen. Raises FindingsError where its findings forbid a start."""
    watcher.planned(plan)
    refuse(plan.findings, strict=request.strict)
    return plan


def _as_manned(gang: GangSpec, view: GangView) -> GangSpec:
    """With the spares that take part in what runs now, and without those that wait."""
    return replace(with_spares(gang, view.stand_ins), spares=())


def _others(operation: AskedOperation, chosen: Collection[str]) -> tuple[GangView, ...]:
    if operation.router is None:
        return ()
    others = [gang for gang in operation.inventory.gangs if gang.name not in chosen]
    return views_of(others, operation.answers.values, operation.answers.failures)


def starts_of(
    gangs: Sequence[GangSpec], plan: Plan, request: UpRequest, *, running: Mapping[str, str] = MappingProxyType({})
) -> list[Staged]:
    """What a plan says of these gangs, in the plan's order. running: ids of plans that mean the same, by gang."""
    scripts, document = launch_scripts(plan), plan_json(plan)
    # gangs are tested one after another; an armed one may have to wait for all the others
    test_s = sum(check.most_s for check in request.before_go) * len(plan.gangs)
    by_name = {gang.name: gang for gang in gangs}

    def requests(gang_plan: GangPlan) -> Mapping[str, StagingRequest]:
        made = staging_requests(
            by_name[gang_plan.name],
            gang_plan,
            scripts,
            plan_id=running.get(gang_plan.name, plan.plan_id),
            hung_after_s=request.hung_after_s,
            asked=request.to_repeat,
        )
        return {name: node.tested_for(test_s) for name, node in made.items()}

    return [
        Staged(gang=by_name[gang_plan.name], requests=requests(gang_plan), document=document)
        for gang_plan in plan.gangs
        if gang_plan.name in by_name
    ]
