"""`l40s-deploy export prometheus DIR`: scrape targets, rules, Alertmanager's configuration, Grafana's dashboard."""

from __future__ import annotations

import argparse
from pathlib import Path

from orchestrator.cli.screen import Screen
from orchestrator.model.inventory import Inventory
from orchestrator.monitoring.targets import DEFAULT_PORT, RULES, Targets

NAME = "prometheus"
SUMMARY = "write scrape config, alerting rules and a Grafana dashboard for this cluster"
EXAMPLE = "l40s-deploy export prometheus monitoring/ --price-per-kwh 0.28 --webhook http://pager.example.org/alerts"


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this kind."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the files are written")
    parser.add_argument(
        "--exporter",
        default=f"127.0.0.1:{DEFAULT_PORT}",
        metavar="HOST:PORT",
        help=f"where Prometheus finds `l40s-deploy exporter` (127.0.0.1:{DEFAULT_PORT})",
    )
    parser.add_argument(
        "--alertmanager",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="an Alertmanager that Prometheus reports to (repeatable)",
    )
    parser.add_argument("--webhook", default="", metavar="URL", help="address that Alertmanager calls for each alert")
    parser.add_argument(
        "--price-per-kwh",
        type=_amount,
        default=0.0,
        metavar="PRICE",
        help="adds the energy cost per million tokens as a recorded series, in the price's currency",
    )
    parser.add_argument(
        "--node-watts",
        type=_amount,
        default=0.0,
        metavar="WATTS",
        help="power of a node without its GPUs (0: energy counts the GPUs only)",
    )


def run(args: argparse.Namespace, inventory: Inventory, screen: Screen) -> int:
    """0; the files are there."""
    from orchestrator.monitoring.steps.export import PrometheusOrder, export_prometheus

    order = PrometheusOrder(
        targets=Targets(exporter=args.exporter, alertmanagers=tuple(args.alertmanager)),
        price_per_kwh=args.price_per_kwh,
        node_watts=args.node_watts,
        receiver=args.webhook,
    )
    written = export_prometheus(inventory, order, args.directory)
    if args.json:
        screen.json({"files": [str(path) for path in written]})
        return 0
    for path in written:
        screen.out.print(str(path))
    screen.say(f"check them: promtool check config {args.directory / 'prometheus.yml'}")
    screen.say(f"check the rules: promtool check rules {args.directory / RULES}")
    return 0


def _amount(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted 0 or more")
    return number
