"""`lab rehearse`: a scenario as a story on the screen, with a verdict."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orchestrator.cli.options import add_examples
from orchestrator.cli.screen import Screen
from orchestrator.protocol.errors import InputError

if TYPE_CHECKING:
    from l40s_lab.rehearsal.rehearse import Ended


def configure(verbs: Any, add_name: Callable[[argparse.ArgumentParser], None]) -> None:
    """verbs: the subparsers of `lab`; add_name: its --name option."""
    rehearse = verbs.add_parser(
        "rehearse", help="run a scenario of steps, faults and expected results; exits 7 if a result differs"
    )
    add_examples(rehearse, "l40s-deploy lab rehearse dead-rank", "l40s-deploy lab rehearse my-cluster.yml --keep")
    rehearse.add_argument("scenario", metavar="SCENARIO", nargs="?", help="a built-in scenario, or a file")
    rehearse.add_argument("--list", action="store_true", help="list the built-in scenarios")
    rehearse.add_argument("--keep", action="store_true", help="keep the lab running afterwards")
    add_name(rehearse)
    rehearse.set_defaults(name="rehearsal")


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when every step ended as the scenario expects."""
    from l40s_lab.rehearsal.scenario import load, names

    if args.list or not args.scenario:
        if not args.list:
            raise InputError(
                "found nothing, wanted a scenario", where="SCENARIO", fix="l40s-deploy lab rehearse --list"
            )
        for name, summary in names().items():
            screen.out.print(f"{name:18} {summary}")
        return 0
    from l40s_lab.rehearsal.rehearse import rehearse

    scenario = load(args.scenario)
    screen.out.print(f"{scenario.name}: {scenario.summary}")
    seconds = rehearse(scenario, args.name, keep=args.keep, tell=screen.say, told=lambda ended: _tell(ended, screen))
    screen.out.print(f"as expected: {len(scenario.steps)} steps in {seconds:.1f} s")
    return 0


def _tell(ended: Ended, screen: Screen) -> None:
    from orchestrator.cli.screen import printable

    step = ended.step
    if step.kind == "say":
        screen.out.print(f"\n{printable(ended.said)}")
        return
    what = "" if step.kind in ("lab", "nothing_left", "break") else f" {step.what}"
    screen.out.print(printable(f"  {ended.seconds:5.1f} s  {step.kind}{what}: {ended.said}"))
