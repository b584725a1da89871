"""Where a gang is, and where one of its nodes is, in one word each."""

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
    UNKNOWN = "unknown"
    """No node of it can be asked, or it runs where this inventory does not look."""

    @property
    def before_go(self) -> bool:
        """No rank was told to start yet."""
        return self in (GangState.STAGED, GangState.ARMED)

    @property
    def loads(self) -> bool:
        """Ranks were told to start, and have not been ready yet."""
        return self in (GangState.STARTING, GangState.WARMING)

    @property
    def was_ready(self) -> bool:
        """All ranks have been ready, and nobody stops them."""
        return self in (GangState.READY, GangState.DEGRADED)


class NodeState(str, Enum):
    """Of one node of a gang: its agent's state, or what is known where that does not say it.

    ABSENT: nothing of the gang is there; UNREACHABLE: it could not be asked; UNKNOWN: it answered, and that tells
    nothing of the gang; SILENT: its agent lives and has reported
    nothing for long; DEAD: its agent is gone; LEFT_OUT: it has no part in the gang's run; SPARE: it waits for one
    """

    STAGED = "staged"
    ARMED = "armed"
    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    ABSENT = "absent"
    UNREACHABLE = "unreachable"
    UNKNOWN = "unknown"
    SILENT = "silent"
    DEAD = "dead"
    LEFT_OUT = "left-out"
    SPARE = "spare"

    def __str__(self) -> str:
        return self.value
