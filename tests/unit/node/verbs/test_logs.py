"""Which lines of a log are not older than so many seconds, by the forms that engines write their time in."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest

from orchestrator.node.verbs import logs

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
