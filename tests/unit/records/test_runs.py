from __future__ import annotations

import json
import os
from pathlib import Path

from orchestrator.records.runs import KEPT, RunRecord


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


def test_the_newest_runs_are_kept_and_nothing_that_is_not_ours_goes(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for number in range(KEPT + 20):
        RunRecord.open(f"r{number}", {}, root=tmp_path)
        os.utime(tmp_path / f"r{number}", (number, number))
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {"notes", *(f"r{number}" for number in range(20, KEPT + 20))}
