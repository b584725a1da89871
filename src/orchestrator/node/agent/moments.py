"""When something was, in epoch seconds that no step of the wall clock moves. Pure; clock.py has the agent's anchor."""

from __future__ import annotations

Anchor = tuple[float, ...]
"""Epoch and monotonic seconds of one moment."""


def at(monotonic_s: float, anchor: Anchor) -> float:
    """Epoch seconds of a moment that is given in monotonic ones."""
    return anchor[0] + monotonic_s - anchor[1]
