"""`l40s-deploy export`: the cluster as files for other programs. Each kind is a module with NAME, SUMMARY, EXAMPLE,
`configure(parser)` and `run(args, inventory, screen) -> exit code`; add it to KINDS."""

from __future__ import annotations

import argparse

from orchestrator.cli.options import add_examples, add_inventory, add_json, open_inventory
from orchestrator.cli.screen import Screen
from orchestrator.monitoring.commands import export_compose, export_prometheus

KINDS = {module.NAME: module for module in (export_prometheus, export_compose)}


def configure(parser: argparse.ArgumentParser) -> None:
    """The kinds and their options."""
    add_examples(parser, *(module.EXAMPLE for module in KINDS.values()))
    kinds = parser.add_subparsers(dest="kind", required=True, metavar=" | ".join(KINDS))
    for name, module in KINDS.items():
        kind = kinds.add_parser(name, help=module.SUMMARY, description=module.SUMMARY)
        add_examples(kind, module.EXAMPLE)
        add_inventory(kind)
        module.configure(kind)
        add_json(kind)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """The output of this kind."""
    return int(KINDS[args.kind].run(args, open_inventory(args, screen), screen))
