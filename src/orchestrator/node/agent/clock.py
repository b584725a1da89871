"""The agent's clock: epoch seconds that wall clock steps do not change, so that differences are correct.

It takes the wall clock's time once and carries it on by the monotonic one, which every process of a boot shares.
"""

from __future__ import annotations

import time

ANCHOR = (time.time(), time.monotonic())
"""Epoch and monotonic seconds of one moment; in the report, for whoever reads it later on this node."""


def now(anchor: tuple[float, ...] = ANCHOR) -> float:
    """Epoch seconds by this process's clock, or by the one with this anchor (of the same boot)."""
    return at(time.monotonic(), anchor)


def at(monotonic_s: float, anchor: tuple[float, ...] = ANCHOR) -> float:
    """Epoch seconds of a moment that is given in monotonic ones."""
    return anchor[0] + monotonic_s - anchor[1]
