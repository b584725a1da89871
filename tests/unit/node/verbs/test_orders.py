"""What an agent is told, and that it is known afterwards."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest

from orchestrator.node import files, processes, supervision
from orchestrator.node.files import GOAL_FILE
from orchestrator.node.verbs import orders, report
from orchestrator.protocol.run_files import GoalOrder


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("goal", ["stop", "stop-now"])
def test_what_a_person_ends_is_remembered_on_a_full_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goal: str
) -> None:
    """Else a guard would start it again. The order is written over the last one, by the same signal as ever."""
    sent: list[int] = []

    def send(_pid: int, _start: float, number: int) -> bool:
        sent.append(number)
        return True

    monkeypatch.setattr(report, "agent", lambda _: (7, 1.0))
    monkeypatch.setattr(processes, "alive", lambda *_: True)
    monkeypatch.setattr(supervision, "send", send)
    assert orders.tell(str(tmp_path), "run")
    monkeypatch.setattr(files, "write", full)
    assert orders.tell(str(tmp_path), goal, ordered=True)
    assert files.read_as(GoalOrder, str(tmp_path / GOAL_FILE)) == GoalOrder(goal=goal, ordered=True)
    assert sent == [signal.SIGUSR1] * 2
