"""The inventory as commands on gangs use it."""

from __future__ import annotations

import argparse

from orchestrator.cli.options import open_inventory
from orchestrator.cli.screen import Screen
from orchestrator.gang.steps.operation import standing_inventory
from orchestrator.model.inventory import Inventory


def open_cluster(args: argparse.Namespace, screen: Screen) -> Inventory:
    """The command's inventory, with the gangs as they stand: those that were started with --replicas are a gang for
    each node."""
    return standing_inventory(open_inventory(args, screen))
