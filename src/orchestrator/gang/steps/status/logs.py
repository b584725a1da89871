"""`logs`: the engines' lines, node by node, and on request as they come."""

from __future__ import annotations

import queue
import re
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

MOST_WAITING = 8 << 20
"""Bytes of lines not yet taken; a stopped terminal makes the nodes wait, and does not fill this machine's memory."""
_OF_A_LINE = 256
"""Bytes that a line takes beside its text."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of one node's engine log, or why it could not be read."""

    node: str
    text: str
    failure: DeployError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFilter:
    """Which lines are wanted. rank: of this TP rank, by SGLang's and vLLM's prefixes; since_s: not older than so many
    seconds by the node's own clock, 0 for all."""

    rank: int | None = None
    since_s: float = 0.0
    pattern: re.Pattern[str] | None = None

    def takes(self, text: str) -> bool:
        """Whether a line is one of them, its age aside."""
        of_rank = self.rank is None or re.search(rf"^[^\]:]{{0,128}}(?<![A-Za-z])(Worker_)?TP{self.rank}\b", text)
        return bool(of_rank) and (self.pattern is None or bool(self.pattern.search(text)))


def logs(
    inventory: Inventory,
    *,
    gangs: tuple[str, ...] = (),
    nodes: tuple[str, ...] = (),
    lines: int,
    follow: bool,
    wanted: LogFilter = LogFilter(),
) -> Iterator[LogLine]:
    """All nodes side by side; without `follow` node after node. No gang or node named means all, without
    the router.

    Raises InputError for an unknown gang or node.
    """
    with Fleet(_chosen(inventory, gangs, nodes)) as fleet:
        together = _LineQueue()
        arrived = {name: together if follow else _LineQueue() for name in fleet.nodes}

        def one(session: Session) -> None:
            request = LogsRequest(**where(session.spec), lines=lines, follow=follow, since_s=wanted.since_s)
            for raw in stream(session, "logs", request, endless=follow):
                text = raw.decode("utf-8", "replace").rstrip("\r\n")
                if wanted.takes(text):
                    arrived[session.spec.name].put(LogLine(session.spec.name, text))

        def read(name: str) -> None:
            try:
                for failure in fleet.on_every(one, only=[name]).failures.values():
                    arrived[name].put(LogLine(name, "", failure))
            finally:
                arrived[name].put(None)

        for name in arrived:
            threading.Thread(target=read, args=(name,), daemon=True).start()
        for lines_of in arrived.values():
            yield from iter(lines_of.get, None)


class _LineQueue(queue.Queue[LogLine | None]):
    """Lines not yet taken, and at the end None; who puts waits where they are more than MOST_WAITING bytes."""

    def __init__(self) -> None:
        self._bytes = 0
        super().__init__(MOST_WAITING)

    def _qsize(self) -> int:
        return self._bytes

    def _put(self, item: LogLine | None) -> None:
        self._bytes += _size(item)
        super()._put(item)

    def _get(self) -> LogLine | None:
        item = super()._get()
        self._bytes -= _size(item)
        return item


def _size(item: LogLine | None) -> int:
    return _OF_A_LINE + (len(item.text) if item else 0)


def _chosen(inventory: Inventory, gangs: tuple[str, ...], names: tuple[str, ...]) -> list[NodeSpec]:
    parts = gangs_and_router(inventory, gangs) if gangs else (inventory.gangs,)
    nodes = [node for chosen in parts for gang in chosen for node in gang.nodes]
    return list(chosen_nodes(nodes, names, f"{inventory.path}: --node").values())
