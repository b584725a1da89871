"""What this room adds to verbs of the core: `up --nettest`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from orchestrator.model.deadlines import TEST_BEFORE_GO_S

if TYPE_CHECKING:
    from orchestrator.gang.steps.raising import BeforeGoCheck


def options(verb: str, parser: argparse.ArgumentParser) -> None:
    """Of `up`."""
    from orchestrator.nettest.commands.nettest import add_nettest_min

    if verb == "up":
        parser.add_argument(
            "--nettest",
            action="store_true",
            help="test the network of each gang before its ranks start; refuse if it is slow (exit code 7) or "
            "data arrives wrong (3)",
        )
        add_nettest_min(parser)


def before_go(args: argparse.Namespace) -> BeforeGoCheck | None:
    """Where it is asked for."""
    from orchestrator.gang.steps.raising import BeforeGoCheck
    from orchestrator.nettest.steps.before_go import tested_before

    return BeforeGoCheck(TEST_BEFORE_GO_S, tested_before(args.nettest_min / 100)) if args.nettest else None
