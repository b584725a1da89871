"""`l40s-deploy status`: nodes, ranks, GPUs and service at a glance."""

from __future__ import annotations

import argparse

from orchestrator.cli.options import add_examples, add_inventory, add_json, open_inventory
from orchestrator.cli.screen import Screen
from orchestrator.workflows.status import everybody_answered, status, status_json

UNREACHABLE = 4


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_examples(
        parser,
        "l40s-deploy status",
        "l40s-deploy status --json | jq '.gangs[].state'",
    )
    add_inventory(parser)
    add_json(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when every node answered, whatever the state; 4 otherwise, with what the others said."""
    views = status(open_inventory(args, screen))
    if args.json:
        screen.json(status_json(views))
    else:
        from orchestrator.cli.gangs import gang_block

        for view in views:
            for block in gang_block(view):
                screen.out.print(block)
    return 0 if everybody_answered(views) else UNREACHABLE
