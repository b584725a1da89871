"""The commands on gangs with operations of their own, as a process that was typed has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from orchestrator.gang.overview import Overview
from orchestrator.gang.steps import changes
from orchestrator.gang.steps import down as down_steps
from orchestrator.gang.steps import restart as restart_steps
from orchestrator.gang.steps import up as up_steps
from orchestrator.gang.steps.changes import GangRehearsal
from orchestrator.gang.steps.down import DownRequest, StopResult
from orchestrator.gang.steps.operation import AskedOperation, Operation, connected
from orchestrator.gang.steps.raising import Watcher
from orchestrator.gang.steps.restart import RestartResult
from orchestrator.gang.steps.restart_sequence import RestartRequest
from orchestrator.gang.steps.router.client import Router
from orchestrator.gang.steps.router.host import router_gang
from orchestrator.gang.steps.status import history as kept_by_nodes
from orchestrator.gang.steps.status import overview as seen_now
from orchestrator.gang.steps.status.history import Explanation, GangHistory, NodeVersion
from orchestrator.gang.steps.up_operation import UpRequest, UpResult
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.inventory import GangSpec, Inventory, RouterSpec
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.verbs import ReportAnswer
from orchestrator.remote.fleet import Fleet


def router_of(spec: RouterSpec | None) -> Router:
    """That router, with connections that close themselves."""
    assert spec is not None
    return Router(spec, Fleet(router_gang(spec).nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unasked(AskedOperation):
    """An operation whose nodes have told nothing, and are asked nothing by it."""

    def _answers(self, _: object) -> PerNode[ReportAnswer]:
        return self.answers


def unasked(inventory: Inventory, fleet: object = None, router: Router | None = None) -> Unasked:
    """fleet, router: in place of the inventory's own"""
    connections: Fleet = fleet or Fleet(inventory.nodes)  # type: ignore[assignment]
    front = router_of(inventory.router) if router is None and inventory.router is not None else router
    nothing: PerNode[ReportAnswer] = PerNode(values={}, failures={})
    return Unasked(inventory=inventory, fleet=connections, router=front, answers=nothing)


@contextmanager
def unconnected(inventory: Inventory, **_: object) -> Iterator[Operation]:
    """In place of `operation.connected`, where nothing is to be asked."""
    yield unasked(inventory)


def up(inventory: Inventory, request: UpRequest, watcher: Watcher) -> UpResult:
    with connected(inventory) as operation:
        return up_steps.up(operation.asked(), request, watcher)


def restart(inventory: Inventory, request: RestartRequest, watcher: Watcher) -> RestartResult:
    with connected(inventory) as operation:
        return restart_steps.restart(operation, request, watcher)


def rehearse_restart(inventory: Inventory, request: RestartRequest, watcher: Watcher) -> tuple[GangRehearsal, ...]:
    with connected(inventory) as operation:
        return restart_steps.rehearse_restart(operation, request, watcher)


def rehearse_resume(inventory: Inventory, names: tuple[str, ...]) -> tuple[GangRehearsal, ...]:
    with connected(inventory) as operation:
        return restart_steps.rehearse_resume(operation, names)


def down(inventory: Inventory, request: DownRequest, **more: object) -> tuple[StopResult, ...]:
    with connected(inventory) as operation:
        return down_steps.down(operation, request, **more)  # type: ignore[arg-type]


def would_stop(inventory: Inventory, names: tuple[str, ...], *, now: bool) -> tuple[GangRehearsal, ...]:
    with connected(inventory) as operation:
        return changes.would_stop(operation.fleet, chosen_gangs(inventory, names), now=now)


def status(gangs: Sequence[GangSpec]) -> Overview:
    with Fleet([node for gang in gangs for node in gang.machines], asks_lost=False) as fleet:
        return seen_now.status(fleet, gangs)


def why(inventory: Inventory, **more: Any) -> tuple[Explanation, ...]:
    with connected(inventory, asks_lost=False) as operation:
        return kept_by_nodes.why(operation, **more)


def history(inventory: Inventory) -> tuple[GangHistory, ...]:
    with connected(inventory, asks_lost=False) as operation:
        return kept_by_nodes.history(operation)


def versions(inventory: Inventory) -> tuple[NodeVersion, ...]:
    with connected(inventory, asks_lost=False) as operation:
        return kept_by_nodes.versions(operation)
