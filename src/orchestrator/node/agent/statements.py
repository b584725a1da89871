"""One node's account of why its part of a gang ended, and how close it is to the first failure."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from orchestrator.protocol.link import Account
from orchestrator.protocol.report import Cause


class Weight(enum.IntEnum):
    """How near an account is to the first failure. FOLLOWED: caused by another node's end. UNSURE: may have been (an
    exit with code 0, a signal after the errors of others). SEEN: nothing on that node came before it."""

    FOLLOWED = 1
    UNSURE = 2
    SEEN = 3


@dataclass(frozen=True)
class Statement:
    """One node's account of why its part ends. blames: nodes whose addresses appear in its errors."""

    cause: Cause
    weight: Weight
    blames: tuple[str, ...] = ()

    @property
    def node(self) -> str:
        """The node that ended."""
        return self.cause.node

    def account(self, kind: str = "saw") -> Account:
        """In the form that the leader link carries."""
        return Account(type=kind, cause=self.cause, weight=int(self.weight), blames=self.blames)

    @classmethod
    def of(cls, account: Account) -> Statement | None:
        """From a message; None if it carries no cause."""
        if account.cause is None:
            return None
        return cls(cause=account.cause, weight=_weight(account.weight, account.cause), blames=account.blames)


def _weight(weight: int | None, cause: Cause) -> Weight:
    """If the agent sent no weight, it knows only primary and secondary."""
    if weight in list(Weight):
        return Weight(weight)
    return Weight.FOLLOWED if cause.secondary else Weight.SEEN
