"""Which lines of a log are not older than so many seconds, by the forms that engines write their time in."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest

from orchestrator.node.verbs import logs, report
from orchestrator.protocol.errors import DeployError

NOON = 1_767_182_400.0
"""2025-12-31 12:00 UTC."""
FORMS = (
    "[%Y-%m-%d %H:%M:%S TP3] ",
    "INFO %m-%d %H:%M:%S ",
    "%Y-%m-%dT%H:%M:%S.123Z ",
    "(TP3 pid=7) INFO %m-%d %H:%M:%S ",
)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "localtime", time.gmtime)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("now", [NOON, NOON + 12 * 3600 + 120], ids=["noon", "two minutes after New Year"])
def test_the_last_minutes(form: str, now: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: now)
    told = [time.strftime(form, time.gmtime(now - ago)) + f"{ago} s ago\n" for ago in (86400, 700, 599, 60, 0)]
    log = tmp_path / "engine.log"
    log.write_text("no time\n" + "  of its traceback\n".join(told))
    out = io.BytesIO()
    file = logs._tail(str(log), 100, out, 600.0)
    assert file is not None
    file.close()
    assert out.getvalue().decode() == "  of its traceback\n".join(told[2:])


@pytest.mark.parametrize("text", ["", "no time at all\n", "2025-13\n", "12:00:00 no day\n", "\xff\xfe 99\n"])
def test_what_has_no_time_is_of_no_time(text: str, tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(text)
    out = io.BytesIO()
    file = logs._tail(str(log), 100, out, 600.0)
    assert file is not None and out.getvalue() == b""
    file.close()


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
    found = logs.cut(iter(LINES), wanted, before=2, after=1)
    assert (found.marked, found.lines[0], found.lines[-1]) == (marked, first, last)
    assert marked < 0 or found.lines[marked] == wanted[-1]


def test_both_parts_of_a_rotated_log_are_read(tmp_path: Path) -> None:
    run = tmp_path / "gangs/gang0/runs/r1"
    run.mkdir(parents=True)
    (run / "engine.log.1").write_text("one\ntwo\n")
    (run / "engine.log").write_text("three\rfour")
    request = {"state_dir": str(tmp_path), "gang": "gang0", "run_id": "r1", "lines": ["four"], "before": 9}
    assert logs.excerpt(request)["lines"] == ["one", "two", "three", "four"]
    with pytest.raises(DeployError, match="files of run r2"):
        logs.excerpt({**request, "run_id": "r2"})


def test_history_has_a_report_a_run_and_the_events_of_one(tmp_path: Path) -> None:
    assert report.history({"state_dir": str(tmp_path), "gang": "gang0"})["reports"] == []
    for name in ("r1", "r2"):
        run = tmp_path / "gangs/gang0/runs" / name
        run.mkdir(parents=True)
        (run / "report.json").write_text(f'{{"run_id": "{name}", "state": "failed"}}')
        (run / "events.jsonl").write_text('{"at": 1, "event": "checked"}\n{"at": 2, "ev')
    told = report.history({"state_dir": str(tmp_path), "gang": "gang0", "run_id": "r2"})
    assert [report["run_id"] for report in told["reports"]] == ["r1", "r2"]
    assert told["events"] == [{"at": 1, "event": "checked"}]
