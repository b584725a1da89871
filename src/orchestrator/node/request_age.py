"""How long ago this application was asked for what it is answering: a look judges the node's clock by it."""

from __future__ import annotations

import os
import time

from orchestrator.node import processes

_begun: list[float] = []


def begins() -> None:
    """A process that stays begins to answer a request; its first one began with the process."""
    _begun[:] = [time.clock_gettime(time.CLOCK_BOOTTIME) if _begun else _start_of_this_process()]


def seconds() -> float:
    """Since the request came; of the first one, since the process that answers began."""
    begun = _begun[0] if _begun else _start_of_this_process()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - begun


def _start_of_this_process() -> float:
    """Seconds after the boot."""
    return processes.start_of(os.getpid()) / os.sysconf("SC_CLK_TCK")
