"""`l40s-deploy exporter`: metrics of gangs, GPUs and rails for Prometheus."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

from orchestrator.cli.options import add_examples, add_gangs, add_inventory, add_json, open_inventory
from orchestrator.cli.screen import Screen
from orchestrator.monitoring.targets import DEFAULT_PORT
from orchestrator.workflows.unit import EXPORTER, install, start_words

LOOPBACK = "127.0.0.1"


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_examples(
        parser,
        "l40s-deploy exporter",
        "l40s-deploy exporter --listen 10.0.0.5 --install",
        f"curl -s http://127.0.0.1:{DEFAULT_PORT}/metrics | promtool check metrics",
    )
    add_inventory(parser)
    add_gangs(parser)
    parser.add_argument("--listen", default=LOOPBACK, metavar="ADDRESS", help=f"address to listen on ({LOOPBACK})")
    parser.add_argument("--port", type=port, default=DEFAULT_PORT, metavar="PORT", help=f"TCP port ({DEFAULT_PORT})")
    parser.add_argument("--install", action="store_true", help="write a systemd unit that runs this command, and exit")
    parser.add_argument(
        "--unit", default=EXPORTER.name, metavar="NAME", help=f"with --install: the unit's name ({EXPORTER.name})"
    )
    add_json(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Answers until Ctrl-C."""
    from orchestrator.workflows.monitor.exporter import serving

    inventory = open_inventory(args, screen)
    if args.install:
        options = list(args.gang)
        path = install(
            EXPORTER,
            Path(inventory.path),
            [*options, "--listen", args.listen, "--port", str(args.port)],
            name=args.unit,
        )
        for line in start_words(path):
            screen.say(line)
        if args.json:
            screen.json({"unit": str(path)})
        return 0
    with serving(inventory, tuple(args.gang), args.listen, args.port) as listening:
        url = f"http://{f'[{args.listen}]' if ':' in args.listen else args.listen}:{listening}/metrics"
        if args.json:
            screen.json({"url": url})
        screen.say(f"metrics: {url} (press Ctrl-C to stop)")
        threading.Event().wait()
    return 0


def port(text: str) -> int:
    """A TCP port; 0 for one that is free."""
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"found {text}, wanted 0 to 65535")
    return number
