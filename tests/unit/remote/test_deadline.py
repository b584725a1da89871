"""One time for an entire operation, work beside us, and downloads, which have both."""

from __future__ import annotations

import threading
import time

import pytest
from tests.support.hostile import HOSTILE, talker
from tests.support.waiting import slack

from orchestrator.protocol.errors import InputError
from orchestrator.remote import deadline as module
from orchestrator.remote.deadline import AFTER_STOP_S, STOPPED_S, Deadline, DeadlinePassed, ahead, downloaded


def test_a_wait_ends_at_the_deadline() -> None:
    start = time.monotonic()
    with pytest.raises(DeadlinePassed):
        Deadline(0.05).wait(threading.Event())
    assert 0.04 < time.monotonic() - start < 5 * slack() + AFTER_STOP_S


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_who_stood_still_beyond_the_deadline_listens_once_more(clock: Clock) -> None:
    """A minute of Ctrl-Z: what was answered meanwhile lies in the socket, unread."""
    deadline = Deadline(30)
    clock.now += 60
    assert deadline.left() == AFTER_STOP_S
    clock.now += AFTER_STOP_S
    assert deadline.is_over
    clock.now += 60  # whoever stands still again gets no more
    with pytest.raises(DeadlinePassed):
        deadline.left()


def test_who_looked_in_time_gets_no_more(clock: Clock) -> None:
    deadline = Deadline(30)
    clock.now += 30 + STOPPED_S / 2
    with pytest.raises(DeadlinePassed):
        deadline.left()


def test_a_call_is_broken_later_where_all_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole process is stopped in the call, and goes on after its deadline."""
    monkeypatch.setattr(module, "STOPPED_S", 0.0)
    monkeypatch.setattr(module, "AFTER_STOP_S", 60.0)
    stop = threading.Event()
    with Deadline(0.05).breaking(stop.set):
        assert not stop.wait(0.5)


@pytest.mark.parametrize("fault", [None, OSError("closed by us")])
def test_a_call_without_timeout_is_broken_at_the_deadline(fault: OSError | None) -> None:
    stop = threading.Event()
    with pytest.raises(DeadlinePassed), Deadline(0.05).breaking(stop.set):
        stop.wait()
        if fault is not None:
            raise fault


def test_a_fault_before_the_deadline_is_its_own() -> None:
    with pytest.raises(OSError, match="its own"), Deadline(60).breaking(lambda: None):
        raise OSError("its own")


def test_work_that_cannot_be_broken_is_left_behind() -> None:
    go_on = threading.Event()
    with pytest.raises(DeadlinePassed):
        Deadline(0.05).of(go_on.wait)
    go_on.set()
    assert Deadline(60).of(lambda: 7) == 7


def test_work_goes_on_beside_us_and_tells_its_end_where_it_is_wanted() -> None:
    go = threading.Event()

    def work() -> None:
        go.wait(20)
        raise InputError("what", where="where", fix="fix")

    promised = ahead(work)
    assert not promised.cancel()
    assert not promised.done()
    go.set()
    with pytest.raises(InputError, match="what"):
        promised.result(20)


@pytest.mark.parametrize("hostile", ["dripping status", "dripping headers", "dripping body", "going on", "noise"])
def test_a_download_that_does_not_come_is_left(hostile: str) -> None:
    with talker(*HOSTILE[hostile]) as port, pytest.raises(OSError, match=r"time limit|BadStatusLine"):
        downloaded(f"http://127.0.0.1:{port}/", 100_000, 0.3)
