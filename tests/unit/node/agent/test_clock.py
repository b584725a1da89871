"""A step of the wall clock changes no duration: no phase becomes late, no log line too old to explain a death."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.support.gang import linked_run

from orchestrator.gang.pace import late
from orchestrator.node import files
from orchestrator.node.agent import clock
from orchestrator.node.agent.record import Record
from orchestrator.node.files import REPORT_FILE
from orchestrator.node.verbs import report
from orchestrator.protocol.report import Phase

HOUR_S = 3600.0


def rising(folder: Path) -> Record:
    """A report in its weights, which may take 300 s."""
    record = Record(linked_run("a", str(folder), lease_s=20.0))
    record.set(state="starting", phase=Phase(name="weights", since=clock.now()), allowed_s={"weights": 300.0})
    return record


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S], ids=["forward", "back"])
def test_a_phase_is_not_late_by_a_step(tmp_path: Path, step_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    record = rising(tmp_path)
    record.flush()
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + step_s)
    seen = report.of_run(str(tmp_path))
    assert seen is not None and late([seen]) is None
    assert 0.0 <= seen.now - seen.phase.since < 60.0
    record.flush(force=True)
    again = report.of_run(str(tmp_path))
    assert again is not None and 0.0 <= again.now - again.updated_at < 60.0 and again.word == seen.word


def test_the_times_of_another_boot_are_not_counted_by_this_ones_clock(tmp_path: Path) -> None:
    record = rising(tmp_path)
    record.set(boot_id="another", clock=(1000.0, 50.0))
    record.flush()
    seen = report.of_run(str(tmp_path))
    assert seen is not None and abs(seen.now - time.time()) < 60.0


def test_an_older_agents_report_is_read_by_the_wall_clock(tmp_path: Path) -> None:
    record = rising(tmp_path)
    record.flush()
    path = str(tmp_path / REPORT_FILE)
    files.write_json(path, {name: value for name, value in files.read_json(path).items() if name != "clock"})
    seen = report.of_run(str(tmp_path))
    assert seen is not None and abs(seen.now - time.time()) < 60.0
