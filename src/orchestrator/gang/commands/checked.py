"""The last step of `up` and `restart`: what the rooms check of gangs that serve now."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from orchestrator.cli.screen import Screen
from orchestrator.gang.view import GangView
from orchestrator.model.errors import Exit
from orchestrator.model.inventory import Inventory
from orchestrator.rooms import answers


class AfterReady(Protocol):
    """What became of one room's check."""

    def as_json(self) -> dict[str, Any]:
        """Keys of the verb's document."""

    def say(self, screen: Screen) -> int:
        """On stderr; the exit code."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of all checks."""

    checks: Sequence[AfterReady] = ()

    def as_json(self) -> dict[str, Any]:
        """Keys of the verb's document."""
        return {key: value for one in self.checks for key, value in one.as_json().items()}

    def say(self, screen: Screen) -> int:
        """On stderr; the first exit code that is not 0."""
        codes = [one.say(screen) for one in self.checks]
        return next(filter(None, codes), int(Exit.DONE))


def checked(inventory: Inventory, views: Sequence[GangView], args: argparse.Namespace, screen: Screen) -> Checked:
    """Ask every room that has something to check."""
    return Checked(answers("after_ready", inventory, views, args, screen))
