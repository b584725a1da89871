"""A state directory that stalls: nothing waits for it, memory is bounded, and the operator is informed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from tests.support.gang import Gang
from tests.support.waiting import until

from orchestrator.node.agent.record import MOST_BYTES, Disk

LEASE_S = 3.0


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    opened = threading.Event()
    yield opened
    opened.set()


def test_jobs_are_done_in_their_order_and_a_newer_one_takes_the_place_of_an_older(gate: threading.Event) -> None:
    disk, done = Disk(), list[str]()
    disk.put(gate.wait)  # type: ignore[arg-type]
    until(lambda: not disk._waiting, 5.0, "the gate is waited for")
    for number in range(3):
        disk.put(partial(done.append, f"report {number}"), replacing="report")
        disk.put(partial(done.append, f"event {number}"))
    gate.set()
    disk.wait_until_written(5.0)
    assert done == ["event 0", "event 1", "report 2", "event 2"]


def test_what_waits_is_bounded_and_what_is_lost_is_counted(gate: threading.Event) -> None:
    disk, written = Disk(), list[int]()
    disk.put(gate.wait)  # type: ignore[arg-type]
    for _ in range(1000):
        disk.put(partial(written.append, 1), size=100_000)
    for _ in range(100_000):
        disk.put(partial(written.append, 0))
    assert disk._bytes <= MOST_BYTES
    gate.set()
    disk.wait_until_written(10.0)
    assert disk.lost == (1000 - sum(written)) * 100_000
    assert disk._bytes == 0 and any("MB of the engine's log" in words for words in disk.remarks())


def test_a_stall_is_remarked_while_it_lasts_and_afterwards(gate: threading.Event) -> None:
    now = [100.0]
    disk = Disk(clock=lambda: now[0])
    disk.put(gate.wait)  # type: ignore[arg-type]
    until(lambda: disk._busy_since, 5.0, "busy")
    assert disk.remarks() == []
    now[0] += 12.0
    assert disk.remarks() == ["the state directory does not respond: writes to it hang"]
    gate.set()
    disk.wait_until_written(5.0)
    assert disk.remarks() == ["writes to the state directory hung for 12 s"]


def test_a_disk_that_refuses_loses_only_what_it_refused() -> None:
    disk, done = Disk(), list[str]()

    def refuse() -> None:
        raise OSError(28, "No space left on device")

    disk.put(refuse)
    disk.put(partial(done.append, "next"))
    disk.wait_until_written(5.0)
    assert done == ["next"]


@contextmanager
def stalled(path: Path) -> Iterator[None]:
    """Opening this file blocks, as on a frozen file system: it is a pipe without another end."""
    kept = path.with_name(f"{path.name}.kept")
    if path.exists():
        path.rename(kept)
    os.mkfifo(path)
    try:
        yield
    finally:
        other = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # blocked processes continue
        time.sleep(0.2)
        if kept.exists():
            kept.rename(path)
        else:
            path.unlink()
        os.close(other)


@pytest.mark.parametrize("node", [0, 1])
def test_a_stalled_state_directory_ends_no_healthy_gang(gang: Gang, node: int) -> None:
    cluster = gang(nodes=2, lease_s=LEASE_S).ready()
    with stalled(cluster.log(node).with_name("goal.json")):
        os.kill(cluster.agent(node)[0], signal.SIGUSR1)  # it reads its orders
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 2 * LEASE_S, 3 * LEASE_S)  # the length of the stall is what this tests
        other = 1 - node
        assert cluster.report(other)["state"] == "ready" and cluster.report(other)["cause"] is None
    assert cluster.agents_alive() == [0, 1]
    assert [answer["state"] for answer in cluster.stop_all()] == ["stopped", "stopped"]
    assert any("writes to the state directory hung" in words for words in cluster.report(node)["remarks"])
