"""Times in epoch seconds, unaffected by steps of the wall clock. Pure; clock.py has the agent's anchor."""

from __future__ import annotations

Anchor = tuple[float, ...]
"""One moment, in epoch and in monotonic seconds."""


def at(monotonic_s: float, anchor: Anchor) -> float:
    """Epoch seconds of a time in monotonic seconds."""
    return anchor[0] + monotonic_s - anchor[1]
