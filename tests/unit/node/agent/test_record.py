"""What an agent writes down: the engine's log as it reads it, and a report that no step of the wall clock changes."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.gang import linked_run

from orchestrator.gang.pace import late
from orchestrator.node import files, processes
from orchestrator.node.agent import clock
from orchestrator.node.agent.engine_log import EngineLog
from orchestrator.node.agent.record import Record
from orchestrator.node.engine.logfile import LogFile
from orchestrator.node.engine.watch import LogWatch
from orchestrator.node.files import REPORT_FILE
from orchestrator.node.verbs import report
from orchestrator.protocol.report import Phase
from orchestrator.protocol.staging import CausePattern, Watch


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tuple[EngineLog, int]]:
    """The log as the agent reads it, and the end where the engine writes."""
    pipe, written = os.pipe()
    os.set_blocking(pipe, False)
    entry = CausePattern(id="MOE-UNTUNED", pattern="Using default MoE", text="no tuned MoE config", fix="tune it")
    watch = LogWatch.of(Watch(remarks=(entry,), requests=r"HTTP/1\.1"))
    record = Record(linked_run("a", str(tmp_path)))
    yield EngineLog(pipe=pipe, file=LogFile(str(tmp_path / "engine.log"), 1 << 20), watch=watch, record=record), written
    with suppress(OSError):
        os.close(written)


def test_a_line_that_the_agent_can_not_read_is_a_remark_and_the_next_ones_are_read(
    engine: tuple[EngineLog, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, written = engine
    read: list[str] = []

    def feed(line: str, _: float) -> bool:
        read.append(line)
        return line == "odd" and bool(int("9" * 5000))

    monkeypatch.setattr(log.watch, "feed", feed)
    os.write(written, b"odd\nodd\npla")
    assert log.read()
    os.write(written, b"in\nlast")
    os.close(written)
    assert log.read() and log.pipe == -1
    assert read == ["odd", "odd", "plain", "last"]
    (remark,) = log.remarks
    assert "could not be read" in remark and "ValueError" in remark
    log.close()
    assert (tmp_path / "engine.log").read_bytes() == b"odd\nodd\nplain\nlast"


def test_what_the_engine_says_that_costs_speed_is_remarked_once_with_the_way_out(engine: tuple[EngineLog, int]) -> None:
    log, written = engine
    os.write(written, b"GET /?Using default MoE HTTP/1.1\n")
    log.read()
    assert log.remarks == []
    os.write(written, b"[TP0] Using default MoE config\n[TP1] Using default MoE config\n")
    log.read()
    assert log.remarks == ["no tuned MoE config: tune it"]


def test_the_report_notes_when_each_phase_began_first(tmp_path: Path) -> None:
    record = Record(linked_run("a", str(tmp_path)))
    begin = record.value.started_at
    for name, at in (("weights", 5.0), ("graphs", 25.5), ("weights", 30.0), ("ready", 40.0)):
        record.set(phase=Phase(name=name, since=begin + at))
    assert record.value.began == {"weights": 5.0, "graphs": 25.5, "ready": 40.0}


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


@pytest.mark.parametrize("older", [False, True])
def test_the_times_of_another_boot_or_an_older_agent_are_read_by_the_wall_clock(tmp_path: Path, older: bool) -> None:
    record = rising(tmp_path)
    record.set(**({} if older else {"boot_id": "another", "clock": (1000.0, 50.0)}))
    record.flush()
    path = str(tmp_path / REPORT_FILE)
    files.write_json(
        path, {name: value for name, value in files.read_json(path).items() if name != "clock" or not older}
    )
    seen = report.of_run(str(tmp_path))
    assert seen is not None and abs(seen.now - time.time()) < 60.0


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_agent_on_a_full_disk_goes_on_reporting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node would count as silent, and its gang as degraded, again and again as somebody frees a block."""
    record = Record(linked_run("a", str(tmp_path)))
    record.flush(force=True)
    monkeypatch.setattr(files, "write", full)
    record.set(phase=Phase(name="graphs", since=clock.now()), remarks=("a longer report than the last one",))
    record.flush(force=True)
    written = files.read_json(record.run.path(REPORT_FILE))
    assert written["phase"]["name"] == "graphs" and written["remarks"] == ["a longer report than the last one"]


def test_a_report_that_is_half_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ['{"a": 1, "b', '{"a": 2}']
    monkeypatch.setattr(files, "read_text", lambda _: texts.pop(0) if len(texts) > 1 else texts[0])
    assert files.read_json(str(tmp_path / REPORT_FILE)) == {"a": 2}


def test_the_report_of_a_living_agent_says_that_its_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record(linked_run("a", str(tmp_path)))
    record.flush(force=True)
    monkeypatch.setattr(processes, "alive", lambda *_: True)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((4096, 4096, 9, 0, 0, 9, 9, 9, 0, 255)))
    assert report.raw_of(record.run.folder)["disk_full"] is True
