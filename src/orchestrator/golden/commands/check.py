"""The last step of `up` and `restart`: send the accepted prompts of `golden` again, and report what differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.cli.screen import Screen, printable
from orchestrator.cli.transfers import counting
from orchestrator.gang.view import GangView
from orchestrator.golden.steps.check import GoldenCheck, after_start
from orchestrator.model.errors import Exit
from orchestrator.model.inventory import Inventory


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


def asked_again(inventory: Inventory, views: Sequence[GangView], screen: Screen) -> AskedAgain:
    """Of the gangs that answers were accepted for."""
    with counting(screen, "accepted prompts") as at:
        return AskedAgain(after_start(inventory, views, at))
