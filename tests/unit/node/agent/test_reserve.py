"""An agent that may open nothing more goes on with its reserve, and loses nothing that it must do."""

from __future__ import annotations

import errno
import gc
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from orchestrator.node.agent.agent import Agent
from orchestrator.node.agent.reserve import KEPT, Reserve


@pytest.fixture
def nothing_to_open() -> Iterator[Reserve]:
    """This process has its reserve, and not one descriptor more. What earlier tests left to the garbage collector is
    closed before, and nothing is while it lasts."""
    gc.collect()
    gc.disable()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserve = Reserve.full()
    used = max(int(one.name) for one in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, before[1]))
    taken: list[int] = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        pass
    yield reserve
    gc.enable()
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    for one in (*taken, *reserve._held):
        os.close(one)


def opens(many: int) -> None:
    opened: list[int] = []
    try:
        for _ in range(many):
            opened.append(os.open(os.devnull, os.O_RDONLY))  # noqa: PERF401 - those before a failure are closed
    finally:
        for one in opened:
            os.close(one)


def stepping(reserve: Reserve, step: object) -> Agent:
    agent = mock.Mock(spec=Agent, reserve=reserve, _step=step)
    agent.step = lambda ready: Agent.step(agent, ready)
    return agent


@pytest.mark.parametrize(("many", "missed"), [(1, 0), (KEPT, 0), (KEPT + 1, 1)])
def test_a_round_that_can_open_nothing_has_the_reserve(nothing_to_open: Reserve, many: int, missed: int) -> None:
    with pytest.raises(OSError, match="Too many open files"):
        opens(1)
    tries: list[int] = []

    def step(_: object) -> None:
        tries.append(1)
        opens(many)

    agent = stepping(nothing_to_open, step)
    for _ in range(3):
        agent.step(set())
    assert len(tries) == 6 and nothing_to_open.missed == 3 * missed
    assert len(nothing_to_open._held) == KEPT and "ulimit -n" in nothing_to_open.remarks()[0]


def test_another_error_ends_the_loop() -> None:
    agent = stepping(Reserve(), mock.Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    with pytest.raises(OSError, match="Input/output"):
        agent.step(set())
    assert Reserve().remarks() == []
