"""`l40s-deploy checkpoint download`: a model of Hugging Face or ModelScope onto one node."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.options import add_nodes, add_time_limit, add_usual, open_inventory
from orchestrator.cli.screen import Screen, printable
from orchestrator.cli.transfers import Transfer, TransferPicture, duration, size, time_limit
from orchestrator.gang.commands.dry_run import add_dry_run
from orchestrator.model.chosen import chosen_nodes

if TYPE_CHECKING:
    from orchestrator.protocol.jobs import Downloaded, HubLine, WouldDownload

EXAMPLES = (
    "l40s-deploy checkpoint download deepseek-ai/DeepSeek-V3-0324 --node node0",
    "l40s-deploy checkpoint download meituan/DeepSeek-R1-Channel-INT8 --from modelscope",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of `download`."""
    add_usual(parser, *EXAMPLES)
    parser.add_argument("repo", metavar="REPO", help="OWNER/NAME, or a model whose profile names its repository")
    add_nodes(parser, "download onto this node (repeatable: one after the other; default: the first leader)")
    parser.add_argument(
        "--from", dest="hub", default="huggingface", choices=("huggingface", "modelscope"), help="the hub (huggingface)"
    )
    parser.add_argument("--revision", default="", metavar="REV", help="branch, tag or commit (default: the newest)")
    parser.add_argument(
        "--as",
        dest="name",
        default="",
        metavar="NAME",
        help="directory below l40s_model_root (default: the repository's)",
    )
    parser.add_argument(
        "--exclude", action="append", default=[], metavar="GLOB", help="skip files that match this pattern (repeatable)"
    )
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="file here, mode 0600, with the hub's token")
    parser.add_argument("--endpoint", default="", metavar="URL", help="another address of the hub, such as a mirror's")
    parser.add_argument(
        "--python",
        default="",
        metavar="PATH",
        help="interpreter on the node with the hub's client (default: the stack's)",
    )
    add_dry_run(parser, "show the hub's files and where they would go; download nothing")
    add_time_limit(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when it is there and every file is the hub's; 7 where one is not."""
    from orchestrator.checkpoint.steps.download import DownloadRequest, download, would_download

    inventory = open_inventory(args, screen)
    names = args.node or [inventory.gangs[0].leader.name]
    nodes = chosen_nodes(inventory.nodes, names, f"{inventory.path}: --node").values()
    request = DownloadRequest(
        repo=args.repo,
        hub=args.hub,
        revision=args.revision,
        name=args.name,
        python=args.python,
        endpoint=args.endpoint,
        token_file=args.token_file,
        exclude=tuple(args.exclude),
    )
    if args.dry_run:
        with time_limit(args.timeout, fix="allow more with --timeout"):
            return _rehearsed([(node.name, would_download(node, request)) for node in nodes], screen)
    began = time.monotonic()
    again = "run the same command again to resume"
    brought: list[tuple[str, Downloaded]] = []
    try:
        with time_limit(args.timeout, fix=again):
            for node in nodes:
                with TransferPicture(screen) as picture:
                    brought.append((node.name, download(node, request, partial(_show_pace, picture, node.name))))
    except KeyboardInterrupt:
        screen.say(f"stopped; {again}")
        raise
    seconds = time.monotonic() - began
    if screen.as_json:
        documents = [{"node": name, **done.as_json(), "seconds": round(seconds, 3)} for name, done in brought]
        screen.json(documents[0] if len(documents) == 1 else {"nodes": documents})
        return 0
    for name, done in brought:
        _show(f"{name}:{done.directory}", done, seconds, screen)
    if len(brought) < len(list(inventory.nodes)):
        place = f"{brought[0][0]}:{brought[0][1].directory}"
        screen.out.print(printable(f"next: l40s-deploy checkpoint push {shlex.quote(place)}"))
    return 0


def _rehearsed(found: Sequence[tuple[str, WouldDownload]], screen: Screen) -> int:
    if screen.as_json:
        screen.json({"dry_run": True, "nodes": [{"node": name, **would.as_json()} for name, would in found]})
        return 0
    for name, would in found:
        what = f"{size(would.bytes)} in {would.files} files of {would.commit}"
        kept = f", of which {size(would.held)} are already there from an interrupted run" if would.held else ""
        words = f"would be downloaded: {what}{kept}; {size(would.free)} are free"
        if would.there:
            words = f"already exists; would be compared with {what}"
        screen.out.print(printable(f"{name}:{would.directory}: {words}"))
    screen.out.print("nothing was downloaded")
    return 0


def _show(place: str, done: Downloaded, seconds: float, screen: Screen) -> None:
    state = "already there" if done.there else f"complete after {duration(seconds)}"
    checked = "all checksums match" if not done.by_size else f"{done.by_size} of them checked by size only"
    screen.out.print(printable(f"{place}: {state}; {size(done.bytes)} in {done.files} files, {checked}"))


def _show_pace(picture: TransferPicture, node: str, now: HubLine) -> None:
    picture.show([Transfer(node, now.done, now.total, f"{now.doing} {{}}")])
