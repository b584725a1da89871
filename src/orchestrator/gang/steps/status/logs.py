"""`logs`: the engines' lines, node by node, and on request as they come."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.status.history import ask_history, reports_of
from orchestrator.gang.steps.status.reports import request_keys
from orchestrator.model.chosen import chosen_nodes
from orchestrator.model.deadlines import EXCERPT_S
from orchestrator.model.inventory import GangSpec, NodeSpec
from orchestrator.protocol.errors import DeployError, InputError, RunsElsewhere, WithoutFiles
from orchestrator.protocol.verbs import HistoryAnswer, LogsRequest
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import FOLLOWED, NodeRefusal, StreamLimit, stream
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
    operation: Operation,
    *,
    gangs: tuple[str, ...] = (),
    nodes: tuple[str, ...] = (),
    lines: int,
    follow: bool,
    wanted: LogFilter = LogFilter(),
    run: str = "",
) -> Iterator[LogLine]:
    """All nodes side by side; without `follow` node after node. No gang or node named means all, without
    the router. run: of this run, as far as its log is kept, on the nodes that had a part in it.

    Raises InputError for an unknown gang or node, and a run that no node knows.
    """
    chosen = _chosen(operation, gangs, nodes) if not run else _of_run(operation, gangs, nodes, run)
    together = _LineQueue()
    arrived = {name: together if follow else _LineQueue() for name in chosen}

    def one(session: Session) -> None:
        request = LogsRequest(
            **request_keys(session.spec), run_id=run or None, lines=lines, follow=follow, since_s=wanted.since_s
        )
        for raw in stream(session, "logs", request, FOLLOWED if follow else StreamLimit(total_s=EXCERPT_S)):
            text = raw.decode("utf-8", "replace").rstrip("\r\n")
            if wanted.takes(text):
                arrived[session.spec.name].put(LogLine(session.spec.name, text))

    def read(name: str) -> None:
        try:
            for failure in chosen[name].on_every(one, only=[name]).failures.values():
                arrived[name].put(LogLine(name, "", _why_none(operation, name, failure)))
        finally:
            arrived[name].put(None)

    for name in arrived:
        threading.Thread(target=read, args=(name,), daemon=True).start()
    for lines_of in arrived.values():
        yield from iter(lines_of.get, None)


def _why_none(operation: Operation, name: str, failure: DeployError) -> DeployError:
    """Of a node that has no run of its gang: that it runs under another name or in another place, where it does."""
    if not (isinstance(failure, NodeRefusal) and failure.kind == "no-run"):
        return failure
    gangs = [gang for gang in operation.inventory.gangs if name in {node.name for node in gang.nodes}]
    nodes = (node for view in operation.glance(gangs) for node in view.nodes)
    errors = (node.error for node in nodes if node.name == name)
    return next((error for error in errors if isinstance(error, RunsElsewhere | WithoutFiles)), failure)


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


def _chosen(operation: Operation, gangs: tuple[str, ...], names: tuple[str, ...]) -> dict[str, Fleet]:
    """By the name of each of these nodes, over what it is reached."""
    parts = list(operation.parts(gangs)) if gangs else [(operation.fleet, operation.inventory.gangs)]
    chosen = _named(operation, parts, names)
    fleets = {node.name: fleet for fleet, part in parts for node in _nodes_of(part)}
    return {name: fleets[name] for name in chosen}


def _of_run(operation: Operation, gangs: tuple[str, ...], names: tuple[str, ...], run: str) -> dict[str, Fleet]:
    """Of these nodes those that know this run."""
    parts = list(operation.parts(gangs))
    chosen = _named(operation, parts, names)
    having: dict[str, Fleet] = {}
    for fleet, part in parts:
        for gang in part:
            asked = replace(gang, nodes=tuple(node for node in gang.nodes if node.name in chosen))
            answers = ask_history(fleet, asked, older=True).values
            having |= {name: fleet for name, answer in answers.items() if run in _runs_of(answer)}
    if not having:
        fix = "see the ids of the runs that are kept with `l40s-deploy history`"
        raise InputError(f"no run {run!r} is kept", where=f"{operation.inventory.path}: --run", fix=fix)
    return having


_Parts = Sequence[tuple[Fleet, tuple[GangSpec, ...]]]


def _named(operation: Operation, parts: _Parts, names: tuple[str, ...]) -> Collection[str]:
    nodes = chain.from_iterable(_nodes_of(part) for _, part in parts)
    return chosen_nodes(nodes, names, f"{operation.inventory.path}: --node").keys()


def _nodes_of(gangs: Iterable[GangSpec]) -> list[NodeSpec]:
    return [node for gang in gangs for node in gang.nodes]


def _runs_of(answer: HistoryAnswer) -> list[str]:
    return [report.run_id for report in reports_of(answer)]
