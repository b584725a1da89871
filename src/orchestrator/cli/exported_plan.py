"""What the kinds of `export` that take a plan have in common: its options, making it, printing one file."""

from __future__ import annotations

import argparse

from orchestrator.cli.plan import add_plan_options, request_of
from orchestrator.cli.screen import Screen
from orchestrator.model.exit_codes import Exit
from orchestrator.model.inventory import Inventory
from orchestrator.model.plan import Plan
from orchestrator.workflows.gang.standing import as_replicas
from orchestrator.workflows.plan.plan import plan_inventory

__all__ = ["MODEL", "add_plan_options", "planned", "show"]

MODEL = "--model DeepSeek-V3-0324-Block64x64"


def planned(args: argparse.Namespace, inventory: Inventory) -> Plan:
    """The plan that the options mean."""
    request = request_of(args)
    return plan_inventory(as_replicas(inventory, request.gangs) if request.replicas else inventory, request).plan


def show(text: str, args: argparse.Namespace, screen: Screen) -> int:
    """The file on stdout; with --json as one document."""
    if args.json:
        screen.json({"kind": args.kind, "text": text})
    else:
        screen.verbatim(text.rstrip("\n"))
    return Exit.DONE
