"""The lines around a failure, from a log of which a part was rotated away."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.node.failure import Failure
from orchestrator.node.verbs import excerpt, history

LINES = [f"line {number}" for number in range(10)]


@pytest.mark.parametrize(
    ("wanted", "marked", "first", "last"),
    [
        (["line 5"], 2, "line 3", "line 6"),
        (["line 2", "line 5"], 2, "line 3", "line 6"),
        (["line 0"], 0, "line 0", "line 1"),
        (["line 9"], 2, "line 7", "line 9"),
        (["line 5", "line 2"], -1, "line 8", "line 9"),
        (["never"], -1, "line 8", "line 9"),
        ([], -1, "line 8", "line 9"),
    ],
)
def test_cut(wanted: list[str], marked: int, first: str, last: str) -> None:
    found = excerpt.cut(iter(LINES), wanted, before=2, after=1)
    assert (found.marked, found.lines[0], found.lines[-1]) == (marked, first, last)
    assert marked < 0 or found.lines[marked] == wanted[-1]


def test_both_parts_of_a_rotated_log_are_read(tmp_path: Path) -> None:
    run = tmp_path / "gangs/gang0/runs/r1"
    run.mkdir(parents=True)
    (run / "engine.log.1").write_text("one\ntwo\n")
    (run / "engine.log").write_text("three\rfour")
    request = {"state_dir": str(tmp_path), "gang": "gang0", "run_id": "r1", "lines": ["four"], "before": 9}
    assert excerpt.answer(request)["lines"] == ["one", "two", "three", "four"]
    with pytest.raises(Failure, match="no such run"):
        excerpt.answer({**request, "run_id": "r2"})


def test_history_has_a_report_a_run_and_the_events_of_one(tmp_path: Path) -> None:
    assert history.answer({"state_dir": str(tmp_path), "gang": "gang0"})["reports"] == []
    for name in ("r1", "r2"):
        run = tmp_path / "gangs/gang0/runs" / name
        run.mkdir(parents=True)
        (run / "report.json").write_text(f'{{"run_id": "{name}", "state": "failed"}}')
        (run / "events.jsonl").write_text('{"at": 1, "event": "checked"}\n{"at": 2, "ev')
    told = history.answer({"state_dir": str(tmp_path), "gang": "gang0", "run_id": "r2"})
    assert [report["run_id"] for report in told["reports"]] == ["r1", "r2"]
    assert told["events"] == [{"at": 1, "event": "checked"}]
