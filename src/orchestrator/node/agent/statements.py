"""What one node says of why its part of a gang ends, and how near that is to the beginning."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Cause = dict[str, Any]


class Weight(enum.IntEnum):
    """How near an account is to the beginning. FOLLOWED: from another's end. UNSURE: it may have (an exit with code 0,
    a signal after the errors of others). SEEN: nothing on that node came before it."""

    FOLLOWED = 1
    UNSURE = 2
    SEEN = 3


@dataclass(frozen=True)
class Statement:
    """One node's account of why its part ends. blames: nodes whose addresses its errors carry."""

    cause: Cause
    weight: Weight
    blames: tuple[str, ...] = ()

    @property
    def node(self) -> str:
        """Whose end it is about."""
        return str(self.cause.get("node"))

    def as_json(self) -> dict[str, Any]:
        """As the leader link carries it."""
        return {"cause": self.cause, "weight": int(self.weight), "blames": list(self.blames)}

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Statement | None:
        """From a message; None where it carries no cause."""
        cause = raw.get("cause")
        if not isinstance(cause, dict):
            return None
        blames = raw.get("blames")
        return cls(
            cause=cause,
            weight=_weight(raw.get("weight"), cause),
            blames=tuple(map(str, blames)) if isinstance(blames, list) else (),
        )


def _weight(raw: object, cause: Cause) -> Weight:
    """An agent that says nothing of it knows only primary and secondary."""
    try:
        return Weight(int(str(raw)))
    except ValueError:
        return Weight.FOLLOWED if cause.get("secondary") else Weight.SEEN
