"""`l40s-deploy export`: the cluster as files for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path

from orchestrator.cli.options import add_examples, add_inventory, add_json, add_nodes, open_inventory
from orchestrator.cli.screen import Screen
from orchestrator.gang.steps.operation import connected
from orchestrator.gang.steps.standing import as_replicas
from orchestrator.model.chosen import no_such, without
from orchestrator.model.inventory import Inventory
from orchestrator.monitoring.commands.exporter import DEFAULT_PORT
from orchestrator.planning.steps.exports import compose_files
from orchestrator.planning.steps.plan import make_plan, read_request
from orchestrator.protocol.errors import Exit

_PROMETHEUS = "l40s-deploy export prometheus monitoring/ --price-per-kwh 0.28 --webhook http://pager.example.org/alerts"
_COMPOSE = "l40s-deploy export compose plan.json --node l40s-2 > compose.yml"


def configure(parser: argparse.ArgumentParser) -> None:
    """The kinds and their options."""
    add_examples(parser, _PROMETHEUS, _COMPOSE)
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="prometheus | compose")
    for name, summary, example, configured in (
        (
            "prometheus",
            "write scrape config, alerting rules and a Grafana dashboard for this cluster",
            _PROMETHEUS,
            _configure_prometheus,
        ),
        ("compose", "print a compose file for a node, for containers started by hand", _COMPOSE, _configure_compose),
    ):
        kind = kinds.add_parser(name, help=summary)
        add_examples(kind, example)
        add_inventory(kind)
        configured(kind)
        add_json(kind)


def _configure_prometheus(parser: argparse.ArgumentParser) -> None:
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


def _configure_compose(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a file from `plan --out`; refused once it has changed")
    add_nodes(parser, "a file for this node (repeatable; default: the leader)")


def _amount(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted 0 or more")
    return number


def run(args: argparse.Namespace, screen: Screen) -> int:
    """The output of this kind."""
    inventory = open_inventory(args, screen)
    return _prometheus(args, inventory, screen) if args.kind == "prometheus" else _compose(args, inventory, screen)


def _prometheus(args: argparse.Namespace, inventory: Inventory, screen: Screen) -> int:
    """0; the files are there."""
    from orchestrator.monitoring.steps.export import RULES, prometheus_files, write_files

    files = prometheus_files(
        inventory,
        exporter=args.exporter,
        alertmanagers=args.alertmanager,
        price_per_kwh=args.price_per_kwh,
        node_watts=args.node_watts,
        receiver=args.webhook,
    )
    written = write_files(files, args.directory)
    if args.json:
        screen.json({"files": [str(path) for path in written]})
        return Exit.DONE
    screen.show(*map(str, written))
    screen.say(f"check them: promtool check config {args.directory / 'prometheus.yml'}")
    screen.say(f"check the rules: promtool check rules {args.directory / RULES}")
    return Exit.DONE


def _compose(args: argparse.Namespace, inventory: Inventory, screen: Screen) -> int:
    """The file on stdout; with --json as one document."""
    request = read_request(args.plan)
    inventory = without(inventory, request.without)
    if request.replicas:
        inventory = as_replicas(inventory, request.gangs)
    with connected(inventory, asks_lost=False) as operation:
        plan = make_plan(operation.inventory, request, operation.fleet).plan
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
