"""`l40s-deploy exporter`: metrics of gangs, GPUs and rails for Prometheus."""

from __future__ import annotations

import argparse
import threading

from orchestrator.cli.options import add_install, add_usual_of_gangs, open_inventory
from orchestrator.cli.screen import Screen
from orchestrator.cli.units import install_unit
from orchestrator.gang.steps.guard.unit import EXPORTER
from orchestrator.monitoring.commands.listen import add_listen
from orchestrator.monitoring.targets import DEFAULT_PORT


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_usual_of_gangs(
        parser,
        "l40s-deploy exporter",
        "l40s-deploy exporter --listen 10.0.0.5 --install",
        f"curl -s http://127.0.0.1:{DEFAULT_PORT}/metrics | promtool check metrics",
    )
    add_listen(parser, DEFAULT_PORT)
    add_install(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Answers until Ctrl-C."""
    from orchestrator.monitoring.steps.exporter import serving

    inventory = open_inventory(args, screen)
    if args.install:
        return install_unit(EXPORTER, args, inventory, screen)
    address, port = args.listen
    with serving(inventory, tuple(args.gang), address, port) as listening:
        url = f"http://{f'[{address}]' if ':' in address else address}:{listening}/metrics"
        if args.json:
            screen.json({"url": url})
        screen.say(f"metrics: {url} (press Ctrl-C to stop)")
        threading.Event().wait()
    return 0
