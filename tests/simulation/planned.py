"""`up` as it runs in production, from its look to its last word: what is simulated is the making of a plan, which is
known by its id alone, and what a gate measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

from tests.simulation.gang import Gang

from orchestrator.gang.steps import up, up_operation
from orchestrator.gang.steps.operation import AskedOperation
from orchestrator.gang.steps.raising import Watcher
from orchestrator.gang.steps.router.client import key_in
from orchestrator.gang.steps.staging import Staged
from orchestrator.gang.steps.up_operation import Gated, UpRequest
from orchestrator.gang.view import GangView
from orchestrator.model.inventory import GangSpec
from orchestrator.model.secret_text import fingerprint
from orchestrator.planning.plan_file import GangDiff, SettingChange
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.errors import DeployError, VerificationDiffers

USUAL = "p"
"""The plan that gangs are started with, and that a plain `up` asks for."""
NO_NAMES: Mapping[str, str] = MappingProxyType({})
OTHERS = ("q", "r")
"""Plans with other settings."""


@dataclass(frozen=True)
class SimulatedPart:
    """One gang's part of a plan."""

    name: str
    nodes: tuple[Any, ...]
    service_url: str


@dataclass(frozen=True)
class SimulatedPlan:
    """In place of a plan."""

    plan_id: str
    gangs: tuple[SimulatedPart, ...]
    api_key: str | None = None
    findings: tuple[Any, ...] = ()


@dataclass(frozen=True)
class SimulatedGate:
    """In place of what `--gate` measures before and after. passes: what it finds"""

    passes: bool

    def before(self, gated: Gated, _: Watcher) -> SimulatedGate:
        """Look at the old plan."""
        return replace(self)

    def __call__(self, view: GangView, _: Watcher) -> None:
        if not self.passes:
            raise VerificationDiffers("the new plan answers otherwise", where=f"gang {view.name}", fix="see its page")

    def refused(self, _: str, __: DeployError) -> str:
        """No page."""
        return ""


class Now:
    """In place of work that runs beside the rest: it is done at once."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._value = work()

    def result(self) -> Any:
        """Its value."""
        return self._value


def carry_out(
    operation: AskedOperation, gangs: tuple[str, ...], plan_id: str, watcher: Watcher, timeout_s: float, **options: Any
) -> None:
    """`up` of these gangs with this plan; options: of its request. Raises as it does."""
    plan = PlanRequest(model="m", stack=plan_id, gangs=gangs)
    words = f"up {' '.join(gangs)}"
    done = up.up(operation, UpRequest(plan=plan, command=words, timeout_s=timeout_s, **options), watcher)
    if done.failure is not None:
        raise done.failure


def patches(on: Callable[[GangSpec], Gang]) -> list[tuple[Any, str, Any]]:
    """on: the simulated gang on the nodes of one in the inventory"""

    def make_plan(inventory: Any, request: PlanRequest, _: object) -> Any:
        chosen = [gang for gang in inventory.gangs if not request.gangs or gang.name in request.gangs]
        parts = tuple(SimulatedPart(gang.name, gang.nodes, on(gang).url) for gang in chosen)
        key = key_in(inventory.router.gang_key_file, "gangs") if inventory.router is not None else ""
        with_key = (f"{request.stack}-{key}", parts, fingerprint(key)) if key else (str(request.stack), parts)
        return SimpleNamespace(plan=SimulatedPlan(*with_key), topologies={})

    def starts_of(
        gangs: Sequence[GangSpec],
        plan: SimulatedPlan,
        _: UpRequest,
        *,
        running: Mapping[str, str] = MappingProxyType({}),
    ) -> list[Staged]:
        ids = {gang.name: running.get(gang.name, plan.plan_id) for gang in gangs}
        return [start_of(gang, on(gang), ids[gang.name], plan.api_key) for gang in gangs]

    def compare(_: object, gangs: Iterable[GangSpec], plan: SimulatedPlan, views: Iterable[GangView]) -> list[GangDiff]:
        states = {view.name: view for view in views}
        return [
            GangDiff(
                name=gang.name, state=states[gang.name].state.value, running=states[gang.name].plan_id,
                changes=(SettingChange("", "stack", states[gang.name].plan_id, plan.plan_id),),
            )
            for gang in gangs
        ]  # fmt: skip

    return [
        (up_operation, "ahead", Now), (up_operation, "make_plan", make_plan),
        (up_operation, "examined", lambda planned, *_, **__: planned.plan), (up, "starts_of", starts_of),
        (up, "compare", compare), (up, "refuse_on_nodes", lambda *_: None),
    ]  # fmt: skip


def start_of(spec: GangSpec, gang: Gang, plan_id: str, api_key: str | None) -> Staged:
    """What its nodes are staged with."""
    members = tuple(node.name for node in spec.nodes)
    requests = {
        name: replace(
            gang.run_of(rank), node=name, members=members, plan_id=plan_id, folder="", gang=spec.name, api_key=api_key
        )
        for rank, name in enumerate(members)
    }
    return Staged(gang=spec, requests=requests, document={"plan_id": plan_id})
