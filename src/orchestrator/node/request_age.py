"""How long ago this application was asked for what it is answering: a look judges the node's clock by it."""

from __future__ import annotations

import os
import time

_begun: list[float] = []


def begins() -> None:
    """A process that stays begins to answer a request; its first one began with the process."""
    _begun[:] = [time.clock_gettime(time.CLOCK_BOOTTIME) if _begun else _start_of_this_process()]


def seconds() -> float:
    """Since the request came; of the first one, since the process that answers began."""
    begun = _begun[0] if _begun else _start_of_this_process()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - begun


def _start_of_this_process() -> float:
    """Seconds after the boot (field 22 of proc_pid_stat(5), in clock ticks)."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")
