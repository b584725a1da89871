"""`history`: after many runs each is there, and the counts are right or say that they may be too low."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace

import pytest

from orchestrator.cli.screen import Screen
from orchestrator.gang.commands import history
from orchestrator.gang.history import past_runs
from orchestrator.gang.steps.status.history import GangHistory
from orchestrator.protocol.errors import DeployError, Unreachable
from orchestrator.protocol.report import AgentState, Report

RUNS = 40


def test_after_forty_runs_each_is_there_and_the_count_is_right(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = shown(monkeypatch, capsys, kept(RUNS), {})
    assert len({run for line in told for run in re.findall(r"\brun (r\d+)\b", line)}) == RUNS
    assert told[-1] == f"gang0: started {RUNS} times since midnight"


def test_where_a_node_did_not_answer_the_count_is_the_least(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    away = {"node1": Unreachable("no answer", where="node1", fix="")}
    told = shown(monkeypatch, capsys, {"node0": kept(RUNS)["node0"]}, away)
    assert told[-1] == f"gang0: started at least {RUNS} times since midnight"


def test_a_guard_s_runs_are_among_them(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        {"at": report.started_at - 0.1, "action": "begins", "who": "ops", "host": "head", "command": "guard"}
        for report in kept(3)["node0"]
    ]
    told = shown(monkeypatch, capsys, kept(3), {}, {"node0": lines})
    assert sum("by ops@head" in line for line in told) == sum(line.strip() == "guard" for line in told) == 3


def test_a_command_s_reason_is_one_line_of_whole_words_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"word{number}" for number in range(2000)]
    reason = 'refused\nTraceback (most recent call last):\n  File "x.py", line 1\nValueError: odd\n' + " ".join(words)
    line = {"at": 60.0, "action": f"fails: {reason}", "who": "ops", "host": "head", "pid": 7, "command": "up M"}
    (shown_line,) = shown(monkeypatch, capsys, {}, {}, commands=(line,))
    assert "ops@head (pid 7)" in shown_line and "up M: refused" in shown_line
    assert "Traceback" not in shown_line and 'File "x.py"' not in shown_line
    *_, last, dots = shown_line.split()
    assert last in words and dots == "..." and len(shown_line) < 5000


@pytest.mark.parametrize(
    ("verdict", "why", "ends"),
    [("passed", "", "aaa: passed"), ("not passed", "speed: 80% slower", "aaa: not passed: speed: 80% slower")],
)
def test_what_a_gate_said_and_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verdict: str, why: str, ends: str
) -> None:
    gate = {"verdict": verdict, "old": "aaa", "why": why, "page": [], "html": ""}
    runs = past_runs("gang0", kept(1), {})
    monkeypatch.setattr(f"{__name__}.past_runs", lambda *_: [replace(run, gate=gate) for run in runs])
    (line,) = (line for line in shown(monkeypatch, capsys, kept(1), {}) if "gate against plan" in line)
    assert line.endswith(ends)


def kept(count: int) -> dict[str, list[Report]]:
    """Runs of today, with a second between them, as two nodes have them."""
    midnight = time.mktime((*time.localtime()[:3], 0, 0, 0, 0, 0, -1))
    return {
        node: [
            Report(
                gang="gang0",
                node=node,
                node_rank=rank,
                run_id=f"r{number}",
                state=AgentState.STOPPED,
                started_at=midnight + 60 * number,
                updated_at=midnight + 60 * number + 30,
            )
            for number in range(1, count + 1)
        ]
        for rank, node in enumerate(("node0", "node1"))
    }


def shown(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    reports: dict[str, list[Report]],
    failures: Mapping[str, DeployError],
    audit: dict[str, list[dict[str, object]]] | None = None,
    commands: tuple[dict[str, object], ...] = (),
) -> list[str]:
    """The lines of the verb."""
    runs = tuple(past_runs("gang0", reports, audit or {}))
    past = GangHistory(gang="gang0", runs=runs, audit=commands, failures=failures)
    monkeypatch.setattr(history, "connected_cluster", lambda *_, **__: nullcontext())
    monkeypatch.setattr(history, "history", lambda *_: (past,))
    history.run(argparse.Namespace(gang=[], json=False, commands=bool(commands)), Screen())
    return capsys.readouterr().out.splitlines()
