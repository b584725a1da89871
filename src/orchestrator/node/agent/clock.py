"""The agent's clock: epoch seconds that wall clock steps do not change, so that differences are correct.

It reads the wall clock once and continues with the monotonic clock, which all processes of one boot share.
"""

from __future__ import annotations

import time

ANCHOR = (time.time(), time.monotonic())
"""One moment, in epoch and in monotonic seconds; it is in the report, for later readers on this node."""
EPOCH_S = ANCHOR[0] - ANCHOR[1]
"""Epoch seconds at zero of the monotonic clock."""


def now(anchor: tuple[float, ...] = ANCHOR) -> float:
    """Epoch seconds by this process's clock, or by the clock with this anchor (of the same boot)."""
    return anchor[0] + time.monotonic() - anchor[1]
