"""`l40s-deploy golden`: is it still the right text? Answers that were accepted, asked for again."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from orchestrator.cli.options import add_examples, add_usual_of_gangs
from orchestrator.cli.screen import Screen, printable
from orchestrator.gang.commands.cluster import connected_cluster
from orchestrator.golden.batches import LEAST, MOST
from orchestrator.protocol.errors import Exit

if TYPE_CHECKING:
    from orchestrator.golden.answers import Baseline
    from orchestrator.golden.steps.golden import Golden

_VERBS = (
    ("accept", "send a dozen prompts and store the answers as correct for this model, stack and layout"),
    ("check", "send the same prompts again and show the first token that differs"),
    ("show", "show the accepted answers and the file that has them"),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """The words after `golden`."""
    add_examples(parser, "l40s-deploy golden accept", "l40s-deploy golden check", "l40s-deploy golden show")
    verbs = parser.add_subparsers(dest="golden_verb", required=True, metavar="accept | check | show")
    for name, summary in _VERBS:
        verb = verbs.add_parser(name, help=summary)
        if name != "check":
            add_usual_of_gangs(verb, f"l40s-deploy golden {name}")
            continue
        add_usual_of_gangs(verb, "l40s-deploy golden check", "l40s-deploy golden check --requests 16")
        verb.add_argument(
            "--requests",
            type=_requests,
            metavar="N",
            help="then send the same prompts among others, up to N at once: is the text right under load?",
        )


def _requests(value: str) -> int:
    if not value.isdecimal() or not LEAST <= int(value) <= MOST:
        raise argparse.ArgumentTypeError(f"found {value!r}, wanted {LEAST} to {MOST}")
    return int(value)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when all answers are the accepted ones, 7 when one differs, 2 when nothing was accepted to check against."""
    from orchestrator.cli.transfers import counting
    from orchestrator.golden.steps import golden

    work = {"accept": golden.accept_gang, "check": golden.check_gang, "show": golden.kept}[args.golden_verb]
    if args.golden_verb == "check" and args.requests is not None:
        work = partial(golden.check_in_batches, requests=args.requests)
    with connected_cluster(args, screen) as operation, counting(screen, "prompts") as at:
        outcomes = golden.of_gangs(work, operation, args.gang, at)
    if args.golden_verb == "show":
        return _show(outcomes, screen)
    if args.json:
        screen.json(golden.golden_json(outcomes))
    else:
        for outcome in outcomes:
            _print(outcome, screen, accepted=args.golden_verb == "accept")
    verdicts = {outcome.verdict.value for outcome in outcomes}
    if "differs" in verdicts:
        return Exit.DIFFERS
    return Exit.INPUT if "none" in verdicts else Exit.DONE


def _print(outcome: Golden, screen: Screen, *, accepted: bool) -> None:
    for line in _lines(outcome, accepted=accepted):
        screen.out.print(printable(line))


def _lines(outcome: Golden, *, accepted: bool) -> Iterator[str]:
    if outcome.baseline is None:
        yield f"{outcome.gang}: nothing was accepted for {outcome.subject}"
        yield f"  fix: check a few answers yourself, then run `l40s-deploy golden accept {outcome.gang}`"
        return
    if accepted:
        yield f"{outcome.gang}: {outcome.baseline.how_many} accepted for {outcome.subject}"
        yield f"  stored in {outcome.file}"
    else:
        right = len(outcome.compared) - len(outcome.wrong)
        yield f"{outcome.gang}: {right} of {len(outcome.compared)} answers match the accepted ones ({outcome.subject})"
        for each in outcome.wrong:
            yield f"  {each.id}: differs from token {(each.position or 0) + 1} on"
            yield f"    accepted: {each.expected!r}"
            yield f"    found:    {each.found!r}"
        if outcome.wrong:
            fix = "verify checkpoint and kernels on every node: `checkpoint verify` and `l40s-deploy doctor`"
            yield f"  fix: {fix}"
    yield from _in_batches(outcome)
    for prompt in outcome.baseline.varies:
        yield f"  {prompt}: the engine's answer varies here on its own; only the stable part is compared"
    yield from _left_out(outcome.baseline)


def _in_batches(outcome: Golden) -> Iterator[str]:
    check = outcome.in_batches
    if check is None:
        return
    at_once = ", ".join(map(str, check.sizes))
    right = check.answers - len(check.differ)
    yield f"  {right} of {check.answers} answers match with {at_once} requests at once"
    yield from (f"    {each.words}" for each in check.differ)
    finding = outcome.finding
    if finding is not None and check.differ:
        yield f"  {finding.id}: {finding.effect}"
        yield f"  fix: {finding.fix}"


def _left_out(baseline: Baseline) -> Iterator[str]:
    return (f"  {prompt}: left out, it was longer than the engine's context" for prompt in baseline.left_out)


def _show(shown: Sequence[Golden], screen: Screen) -> int:
    if screen.as_json:
        gangs = [
            {
                "name": outcome.gang,
                "file": outcome.file,
                "baseline": outcome.baseline.as_json() if outcome.baseline else None,
            }
            for outcome in shown
        ]
        screen.json({"gangs": gangs})
    else:
        for line in (line for outcome in shown for line in _shown(outcome)):
            screen.out.print(printable(line))
    return Exit.DONE


def _shown(outcome: Golden) -> Iterator[str]:
    if outcome.baseline is None:
        yield f"{outcome.gang}: nothing was accepted for {outcome.subject}"
        return
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(outcome.baseline.made_at))
    yield f"{outcome.gang}: {outcome.baseline.how_many} accepted for {outcome.subject} on {when}, {outcome.file}"
    yield from (f"  {prompt}: {accepted.text!r}" for prompt, accepted in outcome.baseline.prompts.items())
    yield from _left_out(outcome.baseline)
