"""Lines of JSON to the controller, for as long as it listens."""

from __future__ import annotations

import json
import select
import sys
from typing import Any

TICK_S = 0.5
"""Between two lines that say how far something is."""


def tell(value: dict[str, Any]) -> None:
    """One line. Raises BrokenPipeError where nobody reads any more."""
    sys.stdout.write(json.dumps(value, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def reader_is_gone(wait_s: float) -> bool:
    """Whether stdout has lost its reader; waits a little for that."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors and hang-ups are always told
    return bool(poll.poll(wait_s * 1000))
