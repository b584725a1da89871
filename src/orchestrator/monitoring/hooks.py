"""What this room adds to verbs of the core: who is told, metrics beside a guard, and doctor's watch."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from orchestrator.cli.screen import Screen
from orchestrator.cli.transfers import port
from orchestrator.model.inventory import Inventory

if TYPE_CHECKING:
    from orchestrator.monitoring.steps.notify import Notifier


def options(verb: str, parser: argparse.ArgumentParser) -> None:
    """Of `guard` and `doctor`."""
    if verb == "guard":
        parser.add_argument(
            "--metrics",
            type=port,
            metavar="PORT",
            help="also answer Prometheus on this port of 127.0.0.1, as `exporter` does",
        )
    if verb == "doctor":
        from orchestrator.monitoring.commands.doctor_watch import add_watch

        add_watch(parser)


def instead(verb: str, args: argparse.Namespace, screen: Screen) -> int | None:
    """`doctor --watch`, until Ctrl-C."""
    from orchestrator.monitoring.commands.doctor_watch import watch

    return watch(args, screen) if verb == "doctor" else None


def notifier(inventory: Inventory, say: Callable[[str], None]) -> Notifier:
    """Of those whom the inventory names."""
    from orchestrator.monitoring.steps.notify import Notifier

    return Notifier(inventory.notify, inventory.path, say)


def metrics(args: argparse.Namespace, inventory: Inventory) -> AbstractContextManager[object] | None:
    """With --metrics."""
    from orchestrator.monitoring.steps.exporter import serving

    return serving(inventory, tuple(args.gang), "127.0.0.1", args.metrics) if args.metrics is not None else None
