"""The agent's clock: epoch seconds that wall clock steps do not change, so that differences are correct.

It takes the wall clock's time once and carries it on by the monotonic one, which every process of a boot shares.
"""

from __future__ import annotations

import time

from orchestrator.node.agent.moments import Anchor, at

ANCHOR = (time.time(), time.monotonic())
"""This process's; in the report, for whoever reads it later on this node."""


def now(anchor: Anchor = ANCHOR) -> float:
    """Epoch seconds by this process's clock, or by the one with this anchor (of the same boot)."""
    return at(time.monotonic(), anchor)
