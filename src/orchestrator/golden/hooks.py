"""What this room adds to verbs of the core: accepted answers are asked again after a start, and by the guard."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.cli.options import seconds
from orchestrator.cli.screen import Screen
from orchestrator.gang.view import GangView
from orchestrator.model.inventory import Inventory

if TYPE_CHECKING:
    from orchestrator.gang.steps.guard.guard import GuardCheck
    from orchestrator.golden.commands.check import AskedAgain

DAY_S = 86400.0


def options(verb: str, parser: argparse.ArgumentParser) -> None:
    """Of `up`, `restart` and `guard`."""
    if verb in ("up", "restart"):
        parser.add_argument(
            "--no-golden",
            action="store_true",
            help="do not send the accepted prompts of `golden` again once a gang is ready (a difference: exit code 7)",
        )
    if verb == "guard":
        parser.add_argument(
            "--golden-every",
            type=seconds,
            default=DAY_S,
            metavar="TIME",
            help="send the accepted prompts of `golden` again this often; a difference calls --on-failed (24h; 0: "
            "never)",
        )


def after_ready(
    inventory: Inventory, views: Sequence[GangView], args: argparse.Namespace, screen: Screen
) -> AskedAgain | None:
    """Nothing with --no-golden; of the gangs that answers were accepted for."""
    from orchestrator.golden.commands.check import asked_again

    return None if args.no_golden else asked_again(inventory, views, screen)


def guard_event(args: argparse.Namespace) -> GuardCheck | None:
    """None with --golden-every 0."""
    from orchestrator.gang.steps.guard.guard import GuardCheck
    from orchestrator.golden.steps.check import finding

    return GuardCheck(args.golden_every, finding) if args.golden_every > 0 else None
