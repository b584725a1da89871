"""An operation of several steps on a gang, as its nodes remember it until it is finished. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from orchestrator.protocol.message import Message


class OperationKind(str, Enum):
    """The operation, in the words shown to a user."""

    RESTART = "restart"
    ROLLING = "rolling restart"
    MAINTENANCE = "maintenance"
    CHANGE = "change of plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class GangOperation(Message):
    """One gang's part of an operation.

    turning:  its turn has begun: it may be out of the router, stopped, or starting; else its turn is still to come
    was_run:  the run that it had before
    command:  as typed, and who typed it, where and when (epoch seconds of that machine)
    options:  of the command, for the command that finishes it
    by_hand:  its operator left it stopped to work on its nodes: only a command finishes it
    """

    gang: str
    what: OperationKind
    turning: bool = False
    was_run: str = ""
    command: str = ""
    who: str = ""
    host: str = ""
    since: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    by_hand: bool = False


def together(kept: Iterable[object]) -> GangOperation | None:
    """What all nodes of a gang keep, as one: a controller may have been killed before it had written to every node.
    None if they keep nothing, or nothing that we know."""
    known = [one for one in map(GangOperation.read, kept) if isinstance(one, GangOperation)]
    return max(known, key=lambda one: (one.since, one.turning, one.by_hand), default=None)


def sentence(interrupted: Sequence[GangOperation]) -> list[str]:
    """For a user: what was interrupted, how far it got, and how to continue; one line per operation."""
    lines = []
    for what in dict.fromkeys(one.what for one in interrupted):
        mine = [one for one in interrupted if one.what is what]
        turning = [one.gang for one in mine if one.turning]
        waiting = [one.gang for one in mine if not one.turning]
        where = [f"{', '.join(turning)} partly done"] if turning else []
        where += [f"{', '.join(waiting)} not started"] if waiting else []
        lines.append(
            f"a {what.value} was interrupted ({mine[0].who}@{mine[0].host}): {'; '.join(where)}: run `l40s-deploy up`"
        )
    return lines
