"""An operation of several steps on a gang, as its nodes remember it until it is finished. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from enum import Enum
from typing import Any

from orchestrator.protocol.message import Message, schema

NO_VERDICT = "its `up --gate` came to no verdict, so that `up` returns to the plan before"


class OperationKind(str, Enum):
    """The operation, in the words shown to a user."""

    RESTART = "restart"
    ROLLING = "rolling restart"
    MAINTENANCE = "maintenance"
    CHANGE = "change of plan"


@schema(frozen=True, slots=True, kw_only=True)
class GangOperation(Message):
    """One gang's part of an operation.

    turning:  its turn has begun: it may be out of the router, stopped, or starting; else its turn is still to come
    was_run:  the run that it had before
    command:  as typed, and who typed it, where and when (epoch seconds of that machine)
    options:  of the command, for the command that finishes it
    by_hand:  its operator left it stopped to work on its nodes: only a command finishes it
    unjudged: a gate has not let its new plan pass: no request goes to it, and who finishes it brings was_run's back
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
    unjudged: bool = False

    def lets_in(self, run_id: str) -> bool:
        """Whether the router may send requests to this run of the gang."""
        return not self.unjudged or run_id == self.was_run


def together(kept: Iterable[object]) -> GangOperation | None:
    """What the nodes of a gang that answer keep, as one: a controller may have been killed before it had written to
    every node. Options are those that all of them have alike.

    None if most of them keep nothing that we know: nothing is stopped before all have been told, and what a single one
    of several says restarts no gang.
    """
    documents = list(kept)
    known = [operation for operation in map(GangOperation.read, documents) if isinstance(operation, GangOperation)]
    if not known or 2 * len(known) <= len(documents):
        return None
    started = Counter((operation.what, operation.was_run, operation.since) for operation in known)
    most = max(started.values())
    usual = [operation for operation in known if started[operation.what, operation.was_run, operation.since] == most]
    newest = max(usual, key=lambda operation: (operation.since, operation.turning, operation.by_hand))
    alike = {
        name: value
        for name, value in newest.options.items()
        if all(name in operation.options and operation.options[name] == value for operation in usual)
    }
    return replace(newest, options=alike)


def sentence(interrupted: Sequence[GangOperation]) -> list[str]:
    """For a user: what was interrupted, how far it got, and how to continue; one line per operation."""
    kinds = dict.fromkeys(operation.what for operation in interrupted)
    return [_line([operation for operation in interrupted if operation.what is what]) for what in kinds]


def _line(mine: Sequence[GangOperation]) -> str:
    first = mine[0]
    turning = [operation.gang for operation in mine if operation.turning]
    waiting = [operation.gang for operation in mine if not operation.turning]
    where = [f"{', '.join(turning)} partly done"] if turning else []
    where += [f"{', '.join(waiting)} not started"] if waiting else []
    where += [NO_VERDICT] if any(operation.unjudged and operation.turning for operation in mine) else []
    return f"a {first.what.value} was interrupted ({first.who}@{first.host}): {'; '.join(where)}: run `l40s-deploy up`"
