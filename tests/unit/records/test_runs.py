from __future__ import annotations

import json
from pathlib import Path

from orchestrator.records.runs import RunRecord


def test_a_run_keeps_its_plan_and_its_events(tmp_path: Path) -> None:
    record = RunRecord.open("r1", {"plan_id": "p"}, root=tmp_path)
    record.event("go", nodes=("a", "b"))
    record.event("done")
    assert json.loads((tmp_path / "r1/plan.json").read_text()) == {"plan_id": "p"}
    events = [json.loads(line) for line in (tmp_path / "r1/events.jsonl").read_text().splitlines()]
    assert [(event["event"], event.get("nodes")) for event in events] == [("go", ["a", "b"]), ("done", None)]
    assert record.trouble == ""


def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    record = RunRecord.open("r1", {}, root=tmp_path / "file")
    record.event("go")
    assert "Not a directory" in record.trouble
