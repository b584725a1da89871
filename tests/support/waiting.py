"""Waiting for a condition. Deadlines are for an idle machine and are extended when this machine is slower."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

IDLE_START_S = 0.03
"""Seconds to start a bare Python on an idle machine of CI's size (2 cores), measured as below."""
SAMPLE = 20.0
"""How many times more cases `make long` plays than `make test`, which plays a sample."""
LEAST_EXAMPLES = 10
OWN_LOAD = 2.0
"""Runnable processes per processor, at most, while only the tests run."""

PAUSE = 3.0
"""The pause after a check, in multiples of the check's duration."""
LONGEST_PAUSE_S = 3.0
"""The longest pause between two checks."""


def slack() -> float:
    """How many times longer things take than on the idle reference machine; at least 1.

    The larger of two ratios: a process start, measured when the tests began, and the runnable processes now, per
    processor.
    """
    return max(1.0, _start_slack(), os.getloadavg()[0] / (os.cpu_count() or 1))


def crowded() -> float:
    """How much slower this machine is than with the load that the workers of `make test` cause themselves; at least
    1."""
    return max(1.0, slack() / OWN_LOAD)


def smaller() -> float:
    """How much smaller a sample of cases is, so that it ends in time: by SAMPLE, unless ALL_SAMPLES is set, as in `make
    long`, and by what else loads this machine."""
    return crowded() * (1.0 if os.environ.get("ALL_SAMPLES") else SAMPLE)


def examples(of_all: int) -> int:
    """So many examples of hypothesis's: a third, others each time; all with ALL_SAMPLES, as in `make long`."""
    return of_all if os.environ.get("ALL_SAMPLES") else max(LEAST_EXAMPLES, of_all // 3)


@functools.cache
def _start_slack() -> float:
    took = []
    for _ in range(5):
        begin = time.monotonic()
        subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
        took.append(time.monotonic() - begin)
    return sorted(took)[len(took) // 2] / IDLE_START_S


def until(
    done: Callable[[], Any], deadline_s: float = 10.0, what: str | Callable[[], object] = "", step_s: float = 0.02
) -> Any:
    """The condition's first true value; fails the test, with `what` in the message, if there is none in time.

    A slow check is followed by a longer pause, since the tested programs run on the same processors.
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
