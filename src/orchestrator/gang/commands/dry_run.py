"""`--dry-run` of the verbs that restart or stop gangs: what would be done, and nothing done."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from orchestrator.cli.screen import Screen, printable
from orchestrator.model.errors import Exit
from orchestrator.planning.steps.changes import GangRehearsal


def add_dry_run(parser: argparse.ArgumentParser, what: str = "show what would be done; change nothing") -> None:
    """--dry-run."""
    parser.add_argument("--dry-run", action="store_true", help=what)


def show(gangs: Sequence[GangRehearsal], screen: Screen, *, nothing: str = "no gang is affected") -> int:
    """A line a gang, or one document."""
    if screen.as_json:
        screen.json(
            {
                "dry_run": True,
                "gangs": [
                    {"name": one.gang, "state": one.state, "plan_id": one.plan_id, "then": one.then, "what": one.what}
                    for one in gangs
                ],
            }
        )
        return Exit.DONE
    for one in gangs:
        screen.out.print(printable(f"{one.gang} ({one.state}): {one.what}"))
    screen.out.print("nothing was changed" if gangs else f"{nothing}; nothing was changed")
    return Exit.DONE
