"""The engine's log as the agent reads it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.gang import linked_run

from orchestrator.node.agent.engine_log import EngineLog
from orchestrator.node.agent.record import Record
from orchestrator.node.engine.logfile import LogFile
from orchestrator.node.engine.watch import LogWatch
from orchestrator.protocol.report import Phase
from orchestrator.protocol.staging import CausePattern, Watch


def test_a_line_that_the_agent_can_not_read_is_a_remark_and_the_next_ones_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, engine = os.pipe()
    os.set_blocking(pipe, False)
    record = Record(linked_run("a", str(tmp_path)))
    log = EngineLog(pipe=pipe, file=LogFile(str(tmp_path / "engine.log"), 1 << 20), watch=LogWatch(), record=record)
    read: list[str] = []

    def feed(line: str, _: float) -> bool:
        read.append(line)
        return line == "odd" and bool(int("9" * 5000))

    monkeypatch.setattr(log.watch, "feed", feed)
    os.write(engine, b"odd\nodd\npla")
    assert log.read()
    os.write(engine, b"in\nlast")
    os.close(engine)
    assert log.read() and log.pipe == -1
    assert read == ["odd", "odd", "plain", "last"]
    (remark,) = log.remarks
    assert "could not be read" in remark and "ValueError" in remark
    log.close()
    assert (tmp_path / "engine.log").read_bytes() == b"odd\nodd\nplain\nlast"


def test_what_the_engine_says_that_costs_speed_is_remarked_once_with_the_way_out(tmp_path: Path) -> None:
    pipe, engine = os.pipe()
    os.set_blocking(pipe, False)
    entry = CausePattern(id="MOE-UNTUNED", pattern="Using default MoE", text="no tuned MoE config", fix="tune it")
    log = EngineLog(
        pipe=pipe,
        file=LogFile(str(tmp_path / "engine.log"), 1 << 20),
        watch=LogWatch.of(Watch(remarks=(entry,), requests=r"HTTP/1\.1")),
        record=Record(linked_run("a", str(tmp_path))),
    )
    os.write(engine, b"GET /?Using default MoE HTTP/1.1\n")
    log.read()
    assert log.remarks == []
    os.write(engine, b"[TP0] Using default MoE config\n[TP1] Using default MoE config\n")
    log.read()
    assert log.remarks == ["no tuned MoE config: tune it"]
    os.close(engine)


def test_the_report_notes_when_each_phase_began_first(tmp_path: Path) -> None:
    record = Record(linked_run("a", str(tmp_path)))
    begin = record.value.started_at
    for name, at in (("weights", 5.0), ("graphs", 25.5), ("weights", 30.0), ("ready", 40.0)):
        record.set(phase=Phase(name=name, since=begin + at))
    assert record.value.began == {"weights": 5.0, "graphs": 25.5, "ready": 40.0}
