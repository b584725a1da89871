"""The agent's clock: epoch seconds that wall clock steps do not change, so that differences are correct.

It reads the wall clock once and continues with the monotonic clock, which all processes of one boot share.
"""

from __future__ import annotations

import time

from orchestrator.node.agent.moments import Anchor, at

ANCHOR = (time.time(), time.monotonic())
"""This process's anchor; it is in the report, for later readers on this node."""


def now(anchor: Anchor = ANCHOR) -> float:
    """Epoch seconds by this process's clock, or by the clock with this anchor (of the same boot)."""
    return at(time.monotonic(), anchor)
