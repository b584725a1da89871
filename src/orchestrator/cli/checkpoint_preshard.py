"""`l40s-deploy checkpoint preshard`: per-rank weight files, written once by the engine and kept where they are read."""

from __future__ import annotations

import argparse

from orchestrator.cli import plan as plan_verb
from orchestrator.cli.checkpoint_sizes import duration, size
from orchestrator.cli.dry_run import add_dry_run
from orchestrator.cli.options import (
    add_examples,
    add_inventory,
    add_json,
    add_timeout,
    command_line,
    open_inventory,
)
from orchestrator.cli.rising import RisingProgress
from orchestrator.cli.screen import Screen, printable
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.inventory import Inventory

EXAMPLE = "l40s-deploy checkpoint preshard --model DeepSeek-R1-Channel-INT8 --stack sglang-0.5.23 --shared /nfs/dump"


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of `preshard`."""
    add_examples(parser, EXAMPLE)
    plan_verb.add_plan_options(parser)
    parser.add_argument(
        "--shared",
        required=True,
        metavar="DIR",
        help="directory that all nodes of the gang share; the engine writes all ranks' files there once",
    )
    parser.add_argument(
        "--replace", action="store_true", help="stop a serving gang; it stays down until you start it again"
    )
    add_dry_run(parser, "show where each node would keep its files; start and write nothing")
    add_timeout(parser)
    add_inventory(parser)
    add_json(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when every node has its own ranks' files; else what `up` or the first node's failure exits with."""
    from orchestrator.workflows.checkpoint.preshard import PreshardRequest, preshard

    inventory = open_inventory(args, screen)
    wanted = plan_verb.request_of(args)
    if args.dry_run:
        return _rehearse(inventory, wanted.gangs, args.shared, screen)
    request = PreshardRequest(
        plan=wanted, shared=args.shared, command=command_line(), timeout_s=args.timeout, replace=args.replace
    )
    with RisingProgress(screen) as shown:
        done = preshard(inventory, request, shown)
    if screen.as_json:
        nodes = [
            {"name": name, "folder": folder, "bytes": line.total if (line := done.nodes.values.get(name)) else 0}
            for name, folder in done.folders.items()
        ]
        screen.json({"there_before": done.there, "seconds": round(done.seconds, 3), "nodes": nodes})
        return 0
    for name, folder in done.folders.items():
        line = done.nodes.values.get(name)
        words = f"{size(line.total)} in {line.files} files" if line else "already there"
        screen.out.print(printable(f"{name}: {folder}: {words}"), soft_wrap=True)
    screen.out.print(f"took {duration(done.seconds)}; `up` reads these files from now on")
    return 0


def _rehearse(inventory: Inventory, gangs: tuple[str, ...], shared: str, screen: Screen) -> int:
    nodes = [node for gang in chosen_gangs(inventory, gangs) for node in gang.nodes]
    if screen.as_json:
        kept = [{"name": node.name, "directory": node.presharded} for node in nodes]
        screen.json({"dry_run": True, "shared": shared, "nodes": kept})
        return 0
    for node in nodes:
        where = node.presharded or "nowhere: l40s_presharded is not set"
        screen.out.print(printable(f"{node.name}: its own ranks' files from {shared} -> {where}"), soft_wrap=True)
    screen.out.print("nothing was started or written")
    return 0
