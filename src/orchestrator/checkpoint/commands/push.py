"""`l40s-deploy checkpoint push`: a directory onto every node, each byte leaving the source once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.cli.options import add_nodes, add_time_limit, add_usual, open_inventory
from orchestrator.cli.screen import Screen, printable
from orchestrator.cli.transfers import Transfer, TransferPicture, duration, port, rate, size, time_limit

if TYPE_CHECKING:
    from orchestrator.checkpoint.steps.chain import Hop
    from orchestrator.checkpoint.steps.push import CheckpointPushRequest, PushResult
    from orchestrator.model.inventory import Inventory

EXAMPLES = (
    "l40s-deploy checkpoint push node0:/models/DeepSeek-V3-0324-Block64x64     from one node to all others",
    "l40s-deploy checkpoint push ./DeepSeek-V3-0324 --node node1 --node node2 --bwlimit 400M",
    "l40s-deploy checkpoint push node0:/models/DeepSeek-V3-0324 --node node3 --repair     only the files that differ",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of `push`."""
    add_usual(parser, *EXAMPLES)
    parser.add_argument("source", metavar="SRC", help="a directory on this machine, or NODE:/path; read-only")
    add_nodes(parser, "copy only to this node (repeatable; default: all)")
    parser.add_argument(
        "--as",
        dest="name",
        default="",
        metavar="NAME",
        help="directory name below the nodes' model root (default: the name of SRC)",
    )
    parser.add_argument("--dry-run", action="store_true", help="show where it would be copied to; copy nothing")
    add_time_limit(parser)
    parser.add_argument("--repair", action="store_true", help=_REPAIR_HELP)
    parser.add_argument(
        "--bwlimit",
        type=rate,
        default=0,
        metavar="RATE",
        help="limit each link to this many bytes per second, for example 400M",
    )
    parser.add_argument("--streams", type=int, default=0, choices=range(1, 17), metavar="N", help=_STREAMS_HELP)
    parser.add_argument(
        "--interface", default="", metavar="NAME", help="send over the network of this address (default: the fastest)"
    )
    parser.add_argument(
        "--port",
        type=port,
        default=0,
        metavar="N",
        help="port on which nodes listen for each other (default: any free)",
    )


_REPAIR_HELP = "in an existing directory, replace only the files that differ from SRC (reads all files)"
_STREAMS_HELP = "files to send in parallel over each link (default: 2; 1 with --bwlimit)"


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when every node has it; else the first failure's code."""
    from orchestrator.checkpoint.steps.push import CheckpointPushRequest, push

    inventory = open_inventory(args, screen)
    request = CheckpointPushRequest(
        source=args.source,
        to=tuple(dict.fromkeys(args.node)),
        name=args.name,
        streams=args.streams,
        bytes_per_s=args.bwlimit,
        port=args.port,
        interface=args.interface,
        repair=args.repair,
    )
    if args.dry_run:
        return _rehearse(inventory, request, screen)
    try:
        with _PushPicture(screen) as picture, time_limit(args.timeout, fix="run the same command again to resume"):
            pushed = push(inventory, request, picture)
    except KeyboardInterrupt:
        screen.say("stopped; run the same command again to resume")
        raise
    screen.json(_document(pushed)) if screen.as_json else _show(pushed, screen)
    return next((failure.exit_code for failure in pushed.nodes.failures.values()), 0)


def _rehearse(inventory: Inventory, request: CheckpointPushRequest, screen: Screen) -> int:
    from orchestrator.checkpoint.steps.push import destinations

    where = destinations(inventory, request)
    if screen.as_json:
        nodes = [{"name": name, "directory": directory} for name, directory in where.items()]
        screen.json({"dry_run": True, "source": request.source, "nodes": nodes})
        return 0
    for name, directory in where.items():
        doing = "the files that differ would be replaced" if request.repair else "would be copied"
        screen.out.print(printable(f"{name}: {request.source} -> {directory}: {doing}"))
    screen.out.print("nothing was copied")
    return 0


def _document(pushed: PushResult) -> dict[str, Any]:
    return {
        "source": pushed.source,
        "bytes": pushed.bytes,
        "files": pushed.files,
        "seconds": round(pushed.seconds, 3),
        "network": pushed.network,
        "nodes": [_node(name, pushed) for name in pushed.directories],
    }


def _node(name: str, pushed: PushResult) -> dict[str, Any]:
    failure = pushed.nodes.failures.get(name)
    return {
        "name": name,
        "directory": pushed.directories[name],
        "complete": pushed.complete(name),
        "there_before": pushed.there_before(name),
        "files_sent": hop.sent if (hop := pushed.nodes.values.get(name)) else 0,
        "same_as": pushed.shared.get(name),
        "error": failure.as_json() if failure else None,
    }


def _show(pushed: PushResult, screen: Screen) -> None:
    for name, directory in pushed.directories.items():
        failure = pushed.nodes.failures.get(name)
        if failure is not None:
            screen.out.print(printable(f"{failure.where}: {failure.what}"), style="bold red")
            screen.out.print(printable(f"  fix: {failure.fix}"))
        elif hop := pushed.nodes.values.get(name):
            state = _state(hop, pushed.repaired)
            screen.out.print(printable(f"{name}: {directory}: {state}"))
        else:
            state = "" if pushed.complete(name) else ", not complete"
            screen.out.print(printable(f"{name}: {directory}: the same directory as {pushed.shared[name]}'s{state}"))
    arrived = len(pushed.nodes.values)
    if arrived:
        words = f"{size(pushed.bytes)} in {pushed.files} files on {arrived} node{'s' * (arrived != 1)}"
        screen.out.print(f"{words} after {duration(pushed.seconds)}")
    if not pushed.directories:
        screen.out.print("nothing to do: SRC is on the only node")


def _state(hop: Hop, repaired: bool) -> str:
    if hop.there or (repaired and not hop.sent):
        return "already there; all checksums match"
    if repaired:
        return f"intact, all checksums match; {hop.sent} file{'s' * (hop.sent != 1)} sent"
    return "complete; all checksums match"


class _PushPicture(TransferPicture):
    """The workflow's watcher."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        self._complete: set[str] = set()

    def moved(self, hops: Sequence[Hop], total: int, offered: int) -> None:
        """How far every node is."""
        for hop in hops:
            if hop.state == "complete" and hop.name not in self._complete and self._live is None:
                self.say(f"{hop.name}: complete")
                self._complete.add(hop.name)
        rows = [
            Transfer(hop.name, hop.bytes, total, state="" if hop.state == "fetching" else hop.state) for hop in hops
        ]
        self.show([*rows, *([Transfer("source", offered, total, state="read")] if offered < total else [])])
