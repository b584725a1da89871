"""What this room adds to verbs of the core: accepted answers are asked again after a start, and by the guard."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.cli.options import seconds, share
from orchestrator.cli.screen import Screen, printable
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.view import GangView
from orchestrator.protocol.errors import DeployError, Exit, InputError

if TYPE_CHECKING:
    from orchestrator.gang.steps.guard.request import GuardCheck
    from orchestrator.golden.steps.gate import Gate
    from orchestrator.golden.steps.golden import Golden

DAY_S = 86400.0


def options(verb: str, parser: argparse.ArgumentParser) -> None:
    """Of `up`, `restart` and `guard`."""
    if verb == "up":
        parser.add_argument(
            "--gate",
            action="store_true",
            help="change one gang first, and go on only if its answers, alone and among others, are the same and it is"
            " as fast as the old plan's `bench`; else it returns to the old plan (exit code 7)",
        )
        parser.add_argument(
            "--gate-within",
            type=share,
            metavar="PERCENT",
            help="how much slower the new plan may be (5%%), beyond the noise of the runs",
        )
        parser.add_argument(
            "--gate-eval",
            metavar="FILE",
            help='also ask both plans these questions, one {"question": ..., "answer": ...} a line as GSM8K has them;'
            " not fewer answers may be right",
        )
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


def gate(args: argparse.Namespace) -> Gate | None:
    """None without --gate. Raises InputError for an option of its alone, and for questions that can't be read."""
    from orchestrator.golden.gate import WITHIN
    from orchestrator.golden.steps.gate import Gate
    from orchestrator.golden.steps.questions import read_questions

    if not args.gate:
        for option, given in (("--gate-within", args.gate_within), ("--gate-eval", args.gate_eval)):
            if given is not None:
                raise InputError("it has no meaning without --gate", where=option, fix="add --gate")
        return None
    within = WITHIN if args.gate_within is None else args.gate_within
    questions = () if args.gate_eval is None else read_questions(args.gate_eval)
    return Gate(within=within, timeout_s=args.timeout, questions=questions)


@dataclass(frozen=True, slots=True)
class AskedAgain:
    """What became of it, by gang; of those that answers were accepted for."""

    found: Mapping[str, Golden | DeployError]

    def say(self, screen: Screen) -> int:
        """On stderr; the exit code: 7 where an answer differs."""
        code = Exit.DONE
        for gang, outcome in self.found.items():
            if isinstance(outcome, DeployError):
                screen.say(f"golden: {gang} could not be asked: {outcome.what}. Fix: {outcome.fix}")
            elif finding := outcome.finding:
                screen.say(f"{finding.id}: {finding.title}; {finding.effect}")
                for line in finding.evidence:
                    screen.say(printable(f"  {line}"))
                screen.say(f"  fix: {finding.fix}")
                code = Exit.DIFFERS
            else:
                screen.say(f"golden: {gang} gives the {len(outcome.compared)} accepted answers")
        return code

    def as_json(self) -> dict[str, Any]:
        """The key `golden` of a verb's document: a verdict for each gang that was asked; {} where none was."""
        verdicts = {
            gang: "not asked" if isinstance(outcome, DeployError) else outcome.verdict.value
            for gang, outcome in self.found.items()
        }
        return {"golden": verdicts} if verdicts else {}


def after_ready(
    operation: Operation, views: Sequence[GangView], args: argparse.Namespace, screen: Screen
) -> AskedAgain | None:
    """Nothing with --no-golden; of the gangs that answers were accepted for."""
    from orchestrator.cli.transfers import counting
    from orchestrator.golden.steps.golden import after_start

    if args.no_golden:
        return None
    with counting(screen, "accepted prompts") as at:
        outcomes = after_start(operation, views, at)
    return AskedAgain({gang: outcome for gang, outcome in outcomes.items() if outcome is not None})


def guard_event(args: argparse.Namespace) -> GuardCheck | None:
    """None with --golden-every 0."""
    from orchestrator.gang.steps.guard.request import GuardCheck
    from orchestrator.golden.steps.golden import finding

    return GuardCheck(args.golden_every, finding) if args.golden_every > 0 else None
