"""`logs`: the engines' lines, node by node, and on request as they come."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.gang.steps.router.host import gangs_and_router
from orchestrator.gang.steps.status.reports import where
from orchestrator.model.chosen import chosen_nodes
from orchestrator.model.errors import DeployError
from orchestrator.model.inventory import Inventory, NodeSpec
from orchestrator.protocol.verbs import LogsRequest
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import stream
from orchestrator.remote.session import Session

MOST_WAITING = 10_000
"""Lines not yet taken; a stopped terminal makes the nodes wait, and does not fill this machine's memory."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of one node's engine log, or why it could not be read."""

    node: str
    text: str
    failure: DeployError | None = None


def logs(
    inventory: Inventory, *, gangs: tuple[str, ...] = (), nodes: tuple[str, ...] = (), lines: int, follow: bool
) -> Iterator[LogLine]:
    """All nodes side by side; without `follow` node after node. No gang or node named means all, without
    the router.

    Raises InputError for an unknown gang or node.
    """
    chosen = _chosen(inventory, gangs, nodes)
    arrived: queue.Queue[LogLine | None] = queue.Queue(MOST_WAITING)

    def one(session: Session) -> None:
        request = LogsRequest(**where(session.spec), lines=lines, follow=follow)
        for raw in stream(session, "logs", request, endless=follow):
            arrived.put(LogLine(session.spec.name, raw.decode("utf-8", "replace").rstrip("\r\n")))

    with Fleet(chosen) as fleet:

        def all_of_them() -> None:
            answers = fleet.on_every(one)
            for name, failure in answers.failures.items():
                arrived.put(LogLine(name, "", failure))
            arrived.put(None)

        threading.Thread(target=all_of_them, daemon=True).start()
        collected = iter(arrived.get, None)
        yield from collected if follow else sorted(collected, key=lambda line: list(fleet.nodes).index(line.node))


def _chosen(inventory: Inventory, gangs: tuple[str, ...], names: tuple[str, ...]) -> list[NodeSpec]:
    parts = gangs_and_router(inventory, gangs) if gangs else (inventory.gangs,)
    nodes = [node for chosen in parts for gang in chosen for node in gang.nodes]
    return list(chosen_nodes(nodes, names, f"{inventory.path}: --node").values())
