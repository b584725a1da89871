"""What a verb is asked and says: its request, and lines of JSON to whoever reads stdout, for as long as it listens."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from orchestrator.node import processes
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.message import M, Unreadable


def request_of(kind: type[M], raw: Mapping[str, Any]) -> M:
    """The request that stdin held. Raises DeployError, which names the key, where it holds none."""
    request = kind.read(raw)
    if isinstance(request, Unreadable):
        raise DeployError(str(request), where="request", fix="", kind="bad-request")
    return request


_begun: list[float] = []


def begins() -> None:
    """A process that stays begins to answer a request; its first one began with the process."""
    _begun[:] = [time.clock_gettime(time.CLOCK_BOOTTIME) if _begun else _start_of_this_process()]


def seconds() -> float:
    """Since the request came; of the first one, since the process that answers began."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - (_begun[0] if _begun else _start_of_this_process())


def _start_of_this_process() -> float:
    """Seconds after the boot."""
    return processes.start_of(os.getpid()) / os.sysconf("SC_CLK_TCK")


T = TypeVar("T")

TICK_S = 0.5
"""Between two lines of progress."""


PART_BYTES = 256 << 10


def tell(value: dict[str, Any]) -> None:
    """One line. Raises BrokenPipeError if the reader is gone."""
    sys.stdout.write(json.dumps(value, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def in_parts(values: Iterable[T]) -> Iterator[list[T]]:
    """A long list, cut so that each part makes a line that the controller accepts (remote/commands.py LONGEST)."""
    part: list[T] = []
    size = 0
    for value in values:
        length = len(json.dumps(value)) + 1
        if part and size + length > PART_BYTES:
            yield part
            part, size = [], 0
        part.append(value)
        size += length
    if part:
        yield part


def reader_is_gone(wait_s: float) -> bool:
    """Whether stdout has lost its reader; waits a little for that."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors and hang-ups are always told
    return bool(poll.poll(wait_s * 1000))
