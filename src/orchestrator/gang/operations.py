"""An operation of several steps on a gang, as its nodes remember it until it is finished. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from typing import Any


class OperationKind(str, Enum):
    """The operation, in the words shown to a user."""

    RESTART = "restart"
    ROLLING = "rolling restart"
    MAINTENANCE = "maintenance"
    CHANGE = "change of plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class GangOperation:
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

    def as_json(self) -> dict[str, Any]:
        """In the form that the nodes keep."""
        return {**asdict(self), "what": self.what.value, "options": dict(self.options)}


def read(raw: object) -> GangOperation | None:
    """Parse what a node keeps; None if it keeps nothing, or nothing that we know. Unknown keys are ignored."""
    known = {one.name for one in fields(GangOperation)}
    try:
        kept = {name: value for name, value in dict(raw or {}).items() if name in known}  # type: ignore[call-overload]
        return GangOperation(
            **{**kept, "what": OperationKind(kept["what"]), "options": dict(kept.get("options") or {})}
        )
    except (KeyError, TypeError, ValueError):
        return None


def together(kept: Iterable[GangOperation | None]) -> GangOperation | None:
    """Combine what all nodes of a gang keep: a controller may have been killed before it had written to every node."""
    found = sorted((one for one in kept if one is not None), key=lambda one: (one.since, one.turning))
    return found[-1] if found else None


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
