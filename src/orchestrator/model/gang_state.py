"""Where a gang is, in one word."""

from __future__ import annotations

from enum import Enum


class GangState(str, Enum):
    """Derived from all its nodes' reports; stored nowhere."""

    ABSENT = "absent"
    STAGED = "staged"
    ARMED = "armed"
    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    DEGRADED = "degraded"
    DRAINING = "draining"
    STOPPING = "stopping"
    FAILED = "failed"
