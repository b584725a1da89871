"""What this room adds to verbs of the core: accepted answers are asked again after a start, and by the guard."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.cli.options import seconds
from orchestrator.cli.screen import Screen, printable
from orchestrator.gang.view import GangView
from orchestrator.model.errors import Exit
from orchestrator.model.inventory import Inventory

if TYPE_CHECKING:
    from orchestrator.gang.steps.guard.guard import GuardCheck
    from orchestrator.golden.steps.golden import GoldenCheck

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


@dataclass(frozen=True, slots=True)
class AskedAgain:
    """What became of it, gang by gang."""

    found: Sequence[GoldenCheck]

    def say(self, screen: Screen) -> int:
        """On stderr; the exit code: 7 where an answer differs."""
        for one in self.found:
            if one.error is not None:
                screen.say(f"golden: {one.gang} could not be asked: {one.error.what}. Fix: {one.error.fix}")
            elif one.finding is not None:
                screen.say(f"{one.finding.id}: {one.finding.title}; {one.finding.effect}")
                for line in one.finding.evidence:
                    screen.say(printable(f"  {line}"))
                screen.say(f"  fix: {one.finding.fix}")
            elif one.golden is not None:
                screen.say(f"golden: {one.gang} gives the {len(one.golden.compared)} accepted answers")
        return Exit.DIFFERS if any(one.finding is not None for one in self.found) else Exit.DONE

    def as_json(self) -> dict[str, Any]:
        """The key `golden` of a verb's document: a verdict for each gang that was asked; {} where none was."""
        verdicts = {one.gang: one.golden.verdict.value if one.golden is not None else "not asked" for one in self.found}
        return {"golden": verdicts} if verdicts else {}


def after_ready(
    inventory: Inventory, views: Sequence[GangView], args: argparse.Namespace, screen: Screen
) -> AskedAgain | None:
    """Nothing with --no-golden; of the gangs that answers were accepted for."""
    from orchestrator.cli.transfers import counting
    from orchestrator.golden.steps.golden import after_start

    if args.no_golden:
        return None
    with counting(screen, "accepted prompts") as at:
        return AskedAgain(after_start(inventory, views, at))


def guard_event(args: argparse.Namespace) -> GuardCheck | None:
    """None with --golden-every 0."""
    from orchestrator.gang.steps.guard.guard import GuardCheck
    from orchestrator.golden.steps.golden import finding

    return GuardCheck(args.golden_every, finding) if args.golden_every > 0 else None
