"""`l40s-deploy export compose`: a compose file for one node."""

from __future__ import annotations

import argparse
from pathlib import Path

from orchestrator.cli.options import add_nodes
from orchestrator.cli.screen import Screen
from orchestrator.gang.steps.standing import as_replicas
from orchestrator.model.chosen import no_such
from orchestrator.model.errors import Exit
from orchestrator.model.inventory import Inventory
from orchestrator.model.survivors import without
from orchestrator.planning.steps.exports import compose_files
from orchestrator.planning.steps.plan import plan_inventory, read_request

NAME = "compose"
SUMMARY = "print a compose file for a node, for containers started by hand"
EXAMPLE = "l40s-deploy export compose plan.json --node l40s-2 > compose.yml"


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this kind."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a file from `plan --out`; refused once it has changed")
    add_nodes(parser, "a file for this node (repeatable; default: the leader)")


def run(args: argparse.Namespace, inventory: Inventory, screen: Screen) -> int:
    """The file on stdout; with --json as one document."""
    request = read_request(args.plan)
    inventory = without(inventory, request.without)
    plan = plan_inventory(as_replicas(inventory, request.gangs) if request.replicas else inventory, request).plan
    files = compose_files(plan)
    names = args.node or [next(iter(files))]
    for name in names:
        if name not in files:
            raise no_such("node", name, list(files), where="--node")
    text = "\n---\n".join(files[name] for name in names)
    if args.json:
        screen.json({"kind": args.kind, "text": text})
    else:
        screen.verbatim(text.rstrip("\n"))
    return Exit.DONE
