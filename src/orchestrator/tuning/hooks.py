"""What this room adds to other verbs: `up --check-kernels`, `stack check`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from orchestrator.cli.screen import Screen
from orchestrator.model.deadlines import KERNELS_S

if TYPE_CHECKING:
    from orchestrator.gang.steps.up_operation import BeforeGoCheck


def options(verb: str, parser: argparse.ArgumentParser) -> None:
    """Of `up`."""
    if verb == "up":
        parser.add_argument(
            "--check-kernels",
            action="store_true",
            help="run the plan's kernels on one GPU of each node before the ranks start, as `stack check` does; refuse "
            "if one is wrong or fails (exit code 7)",
        )


def actions(verb: str, parsers: Any) -> None:
    """`stack check`."""
    if verb == "stack":
        from orchestrator.tuning.commands import check

        check.configure(
            parsers.add_parser(
                "check", help="run a plan's kernels on the nodes' GPUs, or say which GPUs a stack has code for"
            )
        )


def instead(verb: str, args: argparse.Namespace, screen: Screen) -> int | None:
    """`stack check`."""
    if verb != "stack" or args.action != "check":
        return None
    from orchestrator.tuning.commands import check

    return check.run(args, screen)


def before_go(args: argparse.Namespace) -> BeforeGoCheck | None:
    """Where it is asked for."""
    from orchestrator.gang.steps.up_operation import BeforeGoCheck
    from orchestrator.tuning.steps.kernels import checked_before

    return BeforeGoCheck(KERNELS_S, checked_before) if args.check_kernels else None
