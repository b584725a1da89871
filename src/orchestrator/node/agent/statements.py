"""One node's account of why its part of a gang ended, and how close it is to the first failure."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from orchestrator.protocol.link import Account
from orchestrator.protocol.report import Cause


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
        return self.cause.node

    def account(self, kind: str = "saw") -> Account:
        """As the leader link carries it."""
        return Account(type=kind, cause=self.cause, weight=int(self.weight), blames=self.blames)

    @classmethod
    def of(cls, account: Account) -> Statement | None:
        """From a message; None where it carries no cause."""
        if account.cause is None:
            return None
        return cls(cause=account.cause, weight=_weight(account.weight, account.cause), blames=account.blames)


def _weight(weight: int | None, cause: Cause) -> Weight:
    """An agent that says nothing of it knows only primary and secondary."""
    if weight in list(Weight):
        return Weight(weight)
    return Weight.FOLLOWED if cause.secondary else Weight.SEEN
