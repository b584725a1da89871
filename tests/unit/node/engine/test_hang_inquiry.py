"""When a hang is looked at: once, again only where something moved; and a look that does not end is ended."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.support.waiting import until

from orchestrator.node import dispatch, files, processes
from orchestrator.node.engine.hang_inquiry import AGAIN_S, GIVEN_UP_S, MOVED, HangInquiry, HangQuestion

WANTED = HangQuestion()


@pytest.fixture
def inquiry(tmp_path: Path) -> HangInquiry:
    return HangInquiry(str(tmp_path))


def ends_with(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-S", "-c", f"import os; os._exit({status})"]
    monkeypatch.setattr(dispatch, "command", lambda *_: command)


@pytest.mark.parametrize(("status", "again"), [(MOVED, True), (0, False), (1, False)])
def test_it_is_looked_at_once_and_again_only_where_something_moved(
    status: int, again: bool, inquiry: HangInquiry, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_with(status, monkeypatch)
    assert inquiry.due(0.0, first=True)
    assert inquiry.start(0.0, WANTED, again=False)
    assert inquiry.pid
    assert not inquiry.due(1.0, first=True), "one at a time"
    until(lambda: inquiry.ended(1.0), 20.0)
    assert inquiry.pid == 0
    assert not inquiry.due(AGAIN_S - 1, first=False)
    assert inquiry.due(AGAIN_S, first=False)
    assert inquiry.start(AGAIN_S, WANTED, again=True) is again
    inquiry.close()


def test_a_look_that_does_not_end_is_ended_with_what_it_started(
    inquiry: HangInquiry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "command", lambda *_: ["sleep", "600"])
    assert inquiry.start(0.0, WANTED, again=False)
    pid = inquiry.pid
    assert not inquiry.ended(GIVEN_UP_S - 0.1)
    assert inquiry.ended(GIVEN_UP_S)
    assert (inquiry.pid, inquiry.moved) == (0, False)
    until(lambda: (left := processes.read(pid)) is None or left.gone, 5.0)


def test_a_new_hang_removes_what_was_gathered_of_an_earlier_one(
    inquiry: HangInquiry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_with(MOVED, monkeypatch)
    kept = tmp_path / files.HANG_FILE
    kept.write_text("{}")
    inquiry.start(0.0, WANTED, again=False)
    assert not kept.exists()
    until(lambda: inquiry.ended(1.0), 20.0)
    kept.write_text("{}")
    inquiry.start(AGAIN_S, WANTED, again=True)
    assert kept.exists(), "of the same hang: kept until the next look has written its own"
    inquiry.close()
