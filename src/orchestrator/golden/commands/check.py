"""The last step of `up` and `restart`: send the accepted prompts of `golden` again, and report what differs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.cli.progress import counting
from orchestrator.cli.screen import Screen, printable
from orchestrator.gang.view import GangView
from orchestrator.model.errors import Exit
from orchestrator.model.inventory import Inventory

if TYPE_CHECKING:
    from orchestrator.golden.steps.check import GoldenCheck


def asked_again(
    inventory: Inventory, views: Sequence[GangView], args: argparse.Namespace, screen: Screen
) -> tuple[GoldenCheck, ...]:
    """Nothing with --no-golden, and for gangs that no answers were accepted for."""
    if args.no_golden:
        return ()
    from orchestrator.golden.steps.check import after_start

    with counting(screen, "accepted prompts") as at:
        return after_start(inventory, views, at)


def say(found: Sequence[GoldenCheck], screen: Screen) -> int:
    """On stderr; the exit code: 7 where an answer differs."""
    for one in found:
        if one.error is not None:
            screen.say(f"golden: {one.gang} could not be asked: {one.error.what}. Fix: {one.error.fix}")
        elif one.finding is not None:
            screen.say(f"{one.finding.id}: {one.finding.title}; {one.finding.effect}")
            for line in one.finding.evidence:
                screen.say(printable(f"  {line}"))
            screen.say(f"  fix: {one.finding.fix}")
        elif one.golden is not None:
            screen.say(f"golden: {one.gang} gives the {len(one.golden.compared)} accepted answers")
    return Exit.DIFFERS if any(one.finding is not None for one in found) else Exit.DONE


def as_json(found: Sequence[GoldenCheck]) -> dict[str, Any]:
    """The key `golden` of a verb's document: a verdict for each gang that was asked; {} where none was."""
    verdicts = {one.gang: one.golden.verdict.value if one.golden is not None else "not asked" for one in found}
    return {"golden": verdicts} if verdicts else {}
