"""`l40s-deploy status`: nodes, ranks, GPUs and service at a glance."""

from __future__ import annotations

import argparse

from orchestrator.cli.options import add_examples, add_inventory, add_json, open_inventory
from orchestrator.cli.screen import Screen
from orchestrator.workflows.status.overview import overview, overview_json
from orchestrator.workflows.status.status import everybody_answered

UNREACHABLE = 4


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_examples(
        parser,
        "l40s-deploy status",
        "l40s-deploy status --json | jq '.gangs[].state'",
        "l40s-deploy status --json | jq '.router.workers'",
    )
    add_inventory(parser)
    add_json(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when every node answered, whatever the state; 4 otherwise, with what the others said."""
    seen = overview(open_inventory(args, screen))
    if args.json:
        screen.json(overview_json(seen))
    else:
        from orchestrator.cli.gangs import gang_block, router_block

        for view in seen.views:
            for block in gang_block(view, seen.router):
                screen.out.print(block)
        for block in router_block(seen):
            screen.out.print(block)
    return 0 if everybody_answered(seen.views) else UNREACHABLE
