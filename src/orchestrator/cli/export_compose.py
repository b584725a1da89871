"""`l40s-deploy export compose`: a compose file for one node."""

from __future__ import annotations

import argparse

from orchestrator.cli.exported_plan import MODEL, add_plan_options, planned, show
from orchestrator.cli.options import add_nodes
from orchestrator.cli.screen import Screen
from orchestrator.model.chosen import no_such
from orchestrator.model.inventory import Inventory
from orchestrator.workflows.plan.exports import compose_files

NAME = "compose"
SUMMARY = "print a compose file for a node, for containers started by hand"
EXAMPLE = f"l40s-deploy export compose {MODEL} --node l40s-2 > compose.yml"


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this kind."""
    add_plan_options(parser)
    add_nodes(parser, "a file for this node (repeatable; default: the leader)")


def run(args: argparse.Namespace, inventory: Inventory, screen: Screen) -> int:
    """Print it."""
    files = compose_files(planned(args, inventory))
    names = args.node or [next(iter(files))]
    for name in names:
        if name not in files:
            raise no_such("node", name, list(files), where="--node")
    return show("\n---\n".join(files[name] for name in names), args, screen)
