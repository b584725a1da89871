"""The inventory as commands on gangs use it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.cli.options import open_inventory
from orchestrator.cli.screen import Screen
from orchestrator.gang.steps.operation import Operation, connected, standing_inventory
from orchestrator.model.inventory import Inventory


def open_cluster(args: argparse.Namespace, screen: Screen) -> Inventory:
    """The command's inventory, with the gangs as they stand: those that were started with --replicas are a gang for
    each node. For a command of hours, whose steps connect the nodes anew."""
    return standing_inventory(open_inventory(args, screen))


@contextmanager
def connected_cluster(args: argparse.Namespace, screen: Screen, *, asks_lost: bool = True) -> Iterator[Operation]:
    """The same with its nodes connected. asks_lost: as of Fleet; a command that only looks asks a lost node once."""
    with connected(open_inventory(args, screen), asks_lost=asks_lost) as operation:
        yield operation.as_standing()
