"""`logs` of nodes whose lines have no end: passed on as they are taken, in a bounded part of this machine's memory."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.commands import unasked
from tests.support.waiting import until

from orchestrator.gang.steps.status import logs as module
from orchestrator.gang.steps.status.logs import LogFilter, LogLine, logs
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Reach
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.errors import InputError, NodeError
from orchestrator.protocol.report import AgentState, Report
from orchestrator.protocol.verbs import HistoryAnswer, LogsRequest
from orchestrator.remote.node_app import StreamLimit
from orchestrator.remote.session import Session

MB = 1 << 20
NODES = tuple(
    NodeSpec(name=f"node{n}", gang="g", node_rank=n, reach=Reach(connection="local", host="")) for n in (0, 1)
)
INVENTORY = Inventory(path="hosts.yml", gangs=(GangSpec(name="g", nodes=NODES),))


class Endless:
    """Nodes that write lines of a megabyte, as long as they are taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, line: bytes = b"x" * MB + b"\n") -> None:
        self.written = {node.name: 0 for node in NODES}
        self._line = line
        monkeypatch.setattr(module, "stream", self._stream)

    def _stream(self, session: Session, *_: Any, **__: Any) -> Iterator[bytes]:
        for _line in itertools.count():
            self.written[session.spec.name] += len(self._line)
            yield self._line


@pytest.mark.parametrize("follow", [True, False])
@pytest.mark.parametrize("line", [b"x" * MB + b"\n", b"\n"], ids=["long", "empty"])
def test_what_nobody_takes_is_not_gathered(monkeypatch: pytest.MonkeyPatch, line: bytes, *, follow: bool) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 4 * MB)
    endless = Endless(monkeypatch, line)
    lines = logs(unasked(INVENTORY), lines=5, follow=follow)
    taken = list(itertools.islice(lines, 8))
    assert len(taken) == 8
    before: list[int] = []

    def still() -> bool:
        before.append(sum(endless.written.values()))
        return len(before) > 3 and before[-1] == before[-4]

    until(still, 30, lambda: f"nodes are read on: {endless.written}")
    assert sum(endless.written.values()) < 8 * len(line) + len(NODES) * 8 * MB
    assert follow or {one.node for one in taken} == {"node0"}


@pytest.mark.parametrize("follow", [True, False])
def test_what_is_wanted_is_asked_of_the_nodes_and_filtered_here(
    monkeypatch: pytest.MonkeyPatch, *, follow: bool
) -> None:
    asked: list[LogsRequest] = []

    def told(session: Session, verb: str, request: LogsRequest, limit: StreamLimit) -> Iterator[bytes]:
        assert verb == "logs" and (limit.total_s is None) == limit.endless == follow
        asked.append(request)
        yield from (b"[TP3] NCCL error\n", b"[TP3] fine\n", b"[TP31] NCCL error\n", b"(Worker_TP3 pid=1) error\n")

    monkeypatch.setattr(module, "stream", told)
    wanted = LogFilter(rank=3, since_s=600.0, pattern=re.compile("error"))
    found = [one.text for one in logs(unasked(INVENTORY), nodes=("node1",), lines=9, follow=follow, wanted=wanted)]
    assert found == ["[TP3] NCCL error", "(Worker_TP3 pid=1) error"]
    assert [(one.lines, one.follow, one.since_s) for one in asked] == [(9, follow, 600.0)]


def test_nodes_come_one_after_the_other_and_a_failure_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    late = threading.Event()

    def told(session: Session, *_: Any, **__: Any) -> Iterator[bytes]:
        if session.spec.name == "node1":
            yield b"three\n"
            late.set()
            return
        assert late.wait(30)
        yield b"one\r\n"
        raise NodeError("its disk is gone", where="node0", fix="")

    monkeypatch.setattr(module, "stream", told)
    found = list(logs(unasked(INVENTORY), lines=5, follow=False))
    assert [(line.node, line.text or str(line.failure and line.failure.what)) for line in found] == [
        ("node0", "one"),
        ("node0", "its disk is gone"),
        ("node1", "three"),
    ]
    assert isinstance(found[0], LogLine)


def kept(*runs: str) -> HistoryAnswer:
    reports = [Report(run_id=run, gang="g", node="n", node_rank=0, state=AgentState.STOPPED) for run in runs]
    return HistoryAnswer(now=1.0, reports=tuple(one.as_json() for one in reports))


def test_the_log_of_a_run_is_that_of_the_nodes_which_had_it(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = PerNode(values={"node0": kept("r1", "r2"), "node1": kept("r2")}, failures={})
    asked: list[tuple[str, str | None]] = []

    def told(session: Session, _: str, request: LogsRequest, limit: StreamLimit) -> Iterator[bytes]:
        asked.append((session.spec.name, request.run_id))
        yield b"line\n"

    monkeypatch.setattr(module, "stream", told)
    monkeypatch.setattr(module, "ask_history", lambda *_, older: answers if older else PerNode(values={}, failures={}))
    assert [line.node for line in logs(unasked(INVENTORY), lines=5, follow=False, run="r1")] == ["node0"]
    assert asked == [("node0", "r1")]
    with pytest.raises(InputError, match="no run 'r9' is kept"):
        list(logs(unasked(INVENTORY), lines=5, follow=False, run="r9"))
