"""`l40s-deploy exporter`: metrics of gangs, GPUs and rails for Prometheus."""

from __future__ import annotations

import argparse
import re
import threading
from collections.abc import Callable

from orchestrator.cli.options import add_install, add_usual_of_gangs, open_inventory
from orchestrator.cli.screen import Screen
from orchestrator.cli.typed import install_unit
from orchestrator.cli.units import EXPORTER

DEFAULT_PORT = 9940
"""Where it listens, TCP; not on Prometheus' list of ports that other exporters are known by."""
LOOPBACK = "127.0.0.1"
_PLACE = re.compile(r"(?:\[(?P<six>[^]]+)\]|(?P<four>[^:\[\]]*))(?::(?P<port>\d{1,5}))?")


def add_listen(parser: argparse.ArgumentParser, port: int) -> None:
    """--listen ADDRESS[:PORT], as (address, port)."""
    parser.add_argument(
        "--listen",
        type=_place(port),
        default=(LOOPBACK, port),
        metavar="ADDRESS[:PORT]",
        help=f"where to listen ({LOOPBACK}:{port}; port 0: any free one)",
    )


def _place(port: int) -> Callable[[str], tuple[str, int]]:
    def read(text: str) -> tuple[str, int]:
        if (match := _PLACE.fullmatch(text)) is None or int(match["port"] or 0) > 65535:
            raise argparse.ArgumentTypeError(
                f"found {text!r}, wanted an address such as 10.0.0.5, :{port}, [::1]:{port}"
            )
        return match["six"] or match["four"] or LOOPBACK, int(match["port"] or port)

    return read


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
    with serving(lambda: inventory, tuple(args.gang), address, port) as listening:
        url = f"http://{f'[{address}]' if ':' in address else address}:{listening}/metrics"
        if args.json:
            screen.json({"url": url})
        screen.say(f"metrics: {url} (press Ctrl-C to stop)")
        threading.Event().wait()
    return 0
