"""A verb's request, read."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from orchestrator.node import processes
from orchestrator.node.failure import Failure
from orchestrator.protocol.message import M, Unreadable


def request_of(kind: type[M], raw: Mapping[str, Any]) -> M:
    """The request that stdin held. Raises Failure, which names the key, where it holds none."""
    found = kind.read(raw)
    if isinstance(found, Unreadable):
        raise Failure("bad-request", str(found), "request")
    return found


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
