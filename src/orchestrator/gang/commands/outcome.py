"""What the verbs that start and stop gangs end with: a rehearsal, an interruption, the rooms' checks of gangs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.cli.screen import Screen, printable
from orchestrator.gang.view import GangView
from orchestrator.model.errors import Exit
from orchestrator.model.inventory import Inventory
from orchestrator.planning.steps.changes import GangRehearsal
from orchestrator.rooms import answers


def add_dry_run(parser: argparse.ArgumentParser, what: str = "show what would be done; change nothing") -> None:
    """--dry-run."""
    parser.add_argument("--dry-run", action="store_true", help=what)


def show_rehearsal(gangs: Sequence[GangRehearsal], screen: Screen, *, nothing: str = "no gang is affected") -> int:
    """A line a gang, or one document."""
    if screen.as_json:
        told = [{"name": one.gang, **{key: getattr(one, key) for key in ("state", "plan_id", "then", "what")}}
                for one in gangs]  # fmt: skip
        screen.json({"dry_run": True, "gangs": told})
        return Exit.DONE
    for one in gangs:
        screen.out.print(printable(f"{one.gang} ({one.state}): {one.what}"))
    screen.out.print("nothing was changed" if gangs else f"{nothing}; nothing was changed")
    return Exit.DONE


def interrupted(screen: Screen) -> int:
    """Ctrl-C while gangs restart."""
    screen.say("detached: gangs that were started continue on their own; check with `l40s-deploy status`")
    screen.say("  fix: run `l40s-deploy up` to finish")
    return Exit.INTERRUPTED


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of the rooms' checks: each has as_json(), keys of the verb's document, and say(screen), on stderr."""

    checks: Sequence[Any] = ()

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
