"""The display of `prepare` while Ansible works: task n of m, and a sign that a long task is alive."""

from __future__ import annotations

import pytest
from tests.support.waiting import until

from orchestrator.cli.screen import Screen
from orchestrator.hosts.commands import prepare
from orchestrator.hosts.steps.runner import HostEvent


def test_lines_say_which_task_of_how_many_and_that_a_long_one_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "_LINE_EVERY_S", 0.05)
    said: list[str] = []

    def more() -> str:
        said.append(capsys.readouterr().err)
        return "".join(said)

    with prepare._PrepareProgress(Screen()) as progress:
        progress.tasks.update(node0=41)
        progress(HostEvent("node0", "Look at the host", "started"))
        progress(HostEvent("node0", "Look at the host", "ok", seconds=0.2))
        progress(HostEvent("node0", "Install the packages", "started"))
        until(lambda: "node0: task 2 of 41: Install the packages, 0 s so far" in more(), 30.0, "a sign of life")
        progress(HostEvent("node0", "Install the packages", "changed", seconds=31.0))
        progress(HostEvent("node1", "Look at the host", "started"))
        progress(HostEvent("node1", "Look at the host", "failed", "no"))
    text = more()
    assert "node0: task 2 of 41: Install the packages (31.0 s)" in text
    assert "node1: task 1: failed: Look at the host" in text
