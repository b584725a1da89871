"""Who is told how a command on gangs gets on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from orchestrator.gang.view import GangView
from orchestrator.model.plan import Plan


class Watcher(Protocol):
    """Shows the progress to the operator; steps print nothing."""

    def planned(self, plan: Plan) -> None:
        """The plan is made; nothing is changed yet."""

    def step(self, gang: str, words: str) -> None:
        """A step begins."""

    def seen(self, views: Sequence[GangView]) -> None:
        """The gangs were examined again."""
