"""Waiting for a condition. Deadlines are for an idle machine and grow with how slow this one is."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

IDLE_START_S = 0.03
"""What starting a bare Python takes on an idle machine of the size that CI has (2 cores), measured as below."""
SAMPLE = 4.0
"""How many times more cases `make long` plays of what `make test` plays a sample of."""
OWN_LOAD = 2.0
"""Processes that want to run for each processor, at most, while nothing but the tests runs there."""

PAUSE = 2.0
"""Times as long as a look took is waited until the next one."""
LONGEST_PAUSE_S = 3.0
"""Between two looks."""


def slack() -> float:
    """How many times longer a moment lasts than on the idle reference machine; at least 1.

    The greater of what a process start took when the tests began and of the processes that want to run now, for each
    processor.
    """
    return max(1.0, _start_slack(), os.getloadavg()[0] / (os.cpu_count() or 1))


def smaller() -> float:
    """By how much a sample of cases shrinks, so that it ends in time: by SAMPLE, not where ALL_SAMPLES is set, as `make
    long` does. As much load as the workers of `make test` make by themselves shrinks nothing further."""
    return max(1.0, slack() / OWN_LOAD) * (1.0 if os.environ.get("ALL_SAMPLES") else SAMPLE)


@functools.cache
def _start_slack() -> float:
    took = []
    for _ in range(5):
        begin = time.monotonic()
        subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
        took.append(time.monotonic() - begin)
    return sorted(took)[len(took) // 2] / IDLE_START_S


def until(
    done: Callable[[], Any],
    deadline_s: float = 10.0,
    what: str | Callable[[], object] = "",
    step_s: float = 0.02,
) -> Any:
    """The condition's first true value; fails the test, with `what` in words, where there is none in time.

    A look that takes long is followed by a longer pause: what is waited for runs on the same processors.
    """
    begin = looked = time.monotonic()
    while not (value := done()):
        pause_s = max(step_s, min(LONGEST_PAUSE_S, PAUSE * (time.monotonic() - looked)))
        if time.monotonic() - begin > deadline_s * slack() and not (value := done()):
            said = what() if callable(what) else what
            raise AssertionError(f"not within {deadline_s:g} s (times {slack():.1f}): {said or done}")
        time.sleep(pause_s)
        looked = time.monotonic()
    return value
