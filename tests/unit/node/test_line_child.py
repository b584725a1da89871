"""A child that tells lines: its answers, one that hangs, one that ends; and those who ask it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.waiting import until

from orchestrator.node import dispatch
from orchestrator.node.engine import gpus
from orchestrator.node.line_child import LineChild
from orchestrator.node.look import gauges

Child = Callable[[str], LineChild]
COUNTS = "import sys\nfor number, _ in enumerate(sys.stdin): print({}, flush=True)".format("'{\"n\": %d}' % number")
DIES = "import sys; sys.stdin.readline(); print('{\"n\": 1}', flush=True)"


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    """Gives gauges a child that runs this source."""
    made = LineChild(())

    def runs(source: str) -> LineChild:
        monkeypatch.setattr(dispatch, "command", lambda: [sys.executable, "-c", source])
        monkeypatch.setattr(gauges, "_nvml", made)
        return made

    yield runs
    made.close()


def asked(child: LineChild, deadline_s: float = 20.0) -> dict[str, Any]:
    """As a reading asks."""
    child.read()
    if child.asked_at is None:
        child.ask(time.monotonic())
    return gauges._answer(deadline_s)


def test_one_child_answers_again_and_again(child: Child) -> None:
    kept = child(COUNTS)
    assert [asked(kept) for _ in range(3)] == [{"n": number} for number in range(3)]


def test_one_that_hangs_is_asked_no_more_and_no_second_one_is_started(child: Child) -> None:
    kept = child("import time; time.sleep(60)")
    assert "NVML did not respond within" in asked(kept, 0.1)["error"]
    process = kept.helpers
    assert "did not respond" in asked(kept, 0.0)["error"] and kept.helpers == process


def test_a_late_answer_is_not_taken_for_the_next_one(child: Child) -> None:
    kept = child(f"import time; time.sleep(0.5)\n{COUNTS}")
    assert "error" in asked(kept, 0.0)
    until(lambda: asked(kept, 0.5) == {"n": 1}, 20)


def test_what_a_library_prints_between_is_no_answer(child: Child) -> None:
    assert asked(child(f"print('a preloaded library\\n[1]', flush=True)\n{COUNTS}")) == {"n": 0}


def test_one_that_has_ended_is_started_again(child: Child) -> None:
    kept = child(DIES)
    assert asked(kept) == {"n": 1}
    until(lambda: not kept.helpers, 20)
    assert asked(kept) == {"n": 1}


def test_one_that_ends_without_an_answer_says_so(child: Child) -> None:
    assert asked(child("raise SystemExit(3)")) == {"error": "the process that queries NVML exited without an answer"}


class Held:
    """A child blocked by the driver: it says nothing, and SIGKILL does not end it before the driver returns."""

    made: list[Held]

    def __init__(self, *_: Any, **__: Any) -> None:
        self.pid, self.ended = 1000 + len(self.made), False
        self.stdin, self.stdout = io.BytesIO(), io.BytesIO()
        self.stdout.fileno = lambda: -1  # type: ignore[method-assign]
        self.made.append(self)

    def kill(self) -> None:
        pass

    def poll(self) -> int | None:
        return -9 if self.ended else None

    def wait(self, timeout: float) -> int:
        if not self.ended:
            raise subprocess.TimeoutExpired("nvml", timeout)
        return -9


def test_a_machine_that_starts_no_process_does_not_end_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "command", lambda *_: ["/no/program"])
    memory = gpus.GpuMemory([0])
    assert not memory.wait(1.0) and memory.error == "NVML can't be queried: No such file or directory"


def test_a_wedged_child_is_the_only_one_and_none_of_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Held, "made", [], raising=False)
    monkeypatch.setattr(subprocess, "Popen", Held)
    monkeypatch.setattr(os, "set_blocking", lambda *_: None)
    memory = gpus.GpuMemory([0])
    for turn in range(20):
        memory.ask(1.0 + turn * 30.0)
    assert len(Held.made) == 1 and memory.helpers == {1000}
    assert "NVML does not respond" in memory.error
    Held.made[0].ended = True
    memory.ask(1000.0)
    assert len(Held.made) == 2 and memory.helpers == {1001}
