"""`l40s-deploy status`: nodes, ranks, GPUs and service at a glance."""

from __future__ import annotations

import argparse

from orchestrator.cli.options import add_examples, add_gangs, add_inventory, add_json, open_inventory
from orchestrator.cli.screen import Screen
from orchestrator.workflows.status.overview import overview, overview_json

_EXIT_STATUS = """
exit status, first match: 5 a gang has failed, 3 a gang is degraded (gangs[].degraded_reason in --json:
silent, slow, hung, nodes, rails, router, interrupted), 4 a node did not answer, else 0 (ready, starting, or stopped)
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_examples(
        parser,
        "l40s-deploy status",
        "l40s-deploy status --gang gang0 || echo 'gang0 needs attention'",
        "l40s-deploy status --json | jq '.gangs[] | .state, .degraded_reason'",
        "l40s-deploy status --json | jq '.router.workers'",
    )
    parser.epilog = f"{parser.epilog}\n{_EXIT_STATUS}"
    add_inventory(parser)
    add_gangs(parser)
    add_json(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """5 where a gang failed, 3 where one is degraded, 4 where a node did not answer, else 0."""
    seen = overview(open_inventory(args, screen), tuple(args.gang))
    if args.json:
        screen.json(overview_json(seen))
    else:
        from orchestrator.cli.gangs import gang_block, interrupted_block, router_block

        for view in seen.views:
            for block in gang_block(view, seen.router):
                screen.out.print(block)
        for block in (*router_block(seen), *interrupted_block(seen)):
            screen.out.print(block)
    return seen.exit_code
