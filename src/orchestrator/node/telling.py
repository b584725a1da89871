"""Lines of JSON to whoever reads stdout (the controller, our parent), for as long as it listens."""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

TICK_S = 0.5
"""Between two lines of progress."""


PART_BYTES = 256 << 10


def tell(value: dict[str, Any]) -> None:
    """One line. Raises BrokenPipeError if the reader is gone."""
    sys.stdout.write(json.dumps(value, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def in_parts(values: Iterable[T]) -> Iterator[list[T]]:
    """A long list, cut so that each part makes a line that the controller accepts (remote/session.py LONGEST)."""
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
