"""`l40s-deploy checkpoint download`, `push` and `verify`: one node gets a checkpoint, all others the same."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.options import add_nodes, add_time_limit, add_usual, open_inventory
from orchestrator.cli.screen import Screen, printable
from orchestrator.cli.transfers import Transfer, TransferPicture, duration, port, rate, time_limit
from orchestrator.gang.commands.outcome import add_dry_run
from orchestrator.model.chosen import chosen_nodes
from orchestrator.model.words import counted
from orchestrator.protocol.errors import DeployError, Exit
from orchestrator.protocol.sizes import in_words

if TYPE_CHECKING:
    from orchestrator.checkpoint.steps.chain import Hop
    from orchestrator.checkpoint.steps.push import CheckpointPushRequest, PushResult
    from orchestrator.checkpoint.steps.verify import VerifyResult
    from orchestrator.model.inventory import Inventory
    from orchestrator.protocol.jobs import Downloaded, HubLine, WouldDownload

DOWNLOAD_EXAMPLES = (
    "l40s-deploy checkpoint download deepseek-ai/DeepSeek-V3-0324 --node node0",
    "l40s-deploy checkpoint download meituan/DeepSeek-R1-Channel-INT8 --from modelscope",
)
PUSH_EXAMPLES = (
    "l40s-deploy checkpoint push node0:/models/DeepSeek-V3-0324-Block64x64     # from one node to all others",
    "l40s-deploy checkpoint push ./DeepSeek-V3-0324 --node node1 --node node2 --bwlimit 400M",
    "l40s-deploy checkpoint push node0:/models/DeepSeek-V3-0324 --node node3 --repair     # only the files that differ",
)
VERIFY_EXAMPLES = (
    "l40s-deploy checkpoint verify DeepSeek-V3-0324-Block64x64",
    "l40s-deploy checkpoint verify /models/DeepSeek-V3-0324 --fresh --json",
)
AGAIN = "run the same command again to resume"


@contextmanager
def resumable(args: argparse.Namespace, screen: Screen) -> Iterator[None]:
    """What takes hours, within --timeout, and goes on when it is run again; an interrupt says so."""
    try:
        with time_limit(args.timeout, fix=AGAIN):
            yield
    except KeyboardInterrupt:
        screen.say(f"stopped; {AGAIN}")
        raise


def configure_download(parser: argparse.ArgumentParser) -> None:
    """Options of `download`."""
    add_usual(parser, *DOWNLOAD_EXAMPLES)
    parser.add_argument("repo", metavar="REPO", help="OWNER/NAME, or a model whose profile names its repository")
    add_nodes(parser, "download onto this node (repeatable: one after the other; default: the first leader)")
    parser.add_argument(
        "--from", dest="hub", default="huggingface", choices=("huggingface", "modelscope"), help="the hub (huggingface)"
    )
    parser.add_argument("--revision", default="", metavar="REV", help="branch, tag or commit (default: the newest)")
    _add_name(parser, "directory below l40s_model_root (default: the repository's)")
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


def configure_push(parser: argparse.ArgumentParser) -> None:
    """Options of `push`."""
    add_usual(parser, *PUSH_EXAMPLES)
    parser.add_argument("source", metavar="SRC", help="a directory on this machine, or NODE:/path; read-only")
    add_nodes(parser, "copy only to this node (repeatable; default: all)")
    _add_name(parser, "directory name below the nodes' model root (default: the name of SRC)")
    add_dry_run(parser, "show where it would be copied to; copy nothing")
    add_time_limit(parser)
    parser.add_argument(
        "--repair",
        action="store_true",
        help="in an existing directory, replace only the files that differ from SRC (reads all files)",
    )
    parser.add_argument(
        "--bwlimit",
        type=rate,
        default=0,
        metavar="RATE",
        help="limit each link to this many bytes per second, for example 400M",
    )
    parser.add_argument(
        "--streams",
        type=int,
        default=0,
        choices=range(1, 17),
        metavar="N",
        help="files to send in parallel over each link (default: 2; 1 with --bwlimit)",
    )
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


def configure_verify(parser: argparse.ArgumentParser) -> None:
    """Options of `verify`."""
    add_usual(parser, *VERIFY_EXAMPLES)
    parser.add_argument(
        "what", metavar="DIR|MODEL", help="absolute path on the nodes, or a name below their model root"
    )
    add_nodes(parser, "check only this node (repeatable; default: all)")
    add_time_limit(parser)
    parser.add_argument(
        "--fresh", action="store_true", help="read every byte, even where the checksum is already known"
    )


def _add_name(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--as", dest="name", default="", metavar="NAME", help=what)


def _brought_words(done: Downloaded, seconds: float) -> str:
    state = "already there" if done.there else f"complete after {duration(seconds)}"
    checked = "all checksums match" if not done.by_size else f"{done.by_size} of them checked by size only"
    return f"{state}; {in_words(done.bytes)} in {done.files} files, {checked}"


def run_download(args: argparse.Namespace, screen: Screen) -> int:
    """0 when it is there and every file is the hub's; 7 where one is not."""
    from orchestrator.checkpoint.steps.checkpoint import download, hub_request, would_download

    inventory = open_inventory(args, screen)
    names = args.node or [inventory.gangs[0].leader.name]
    nodes = chosen_nodes(inventory.nodes, names, f"{inventory.path}: --node").values()
    words = {name: getattr(args, name) for name in ("hub", "revision", "name", "python", "endpoint", "token_file")}
    asked = [(node, hub_request(node, args.repo, exclude=tuple(args.exclude), **words)) for node in nodes]
    if args.dry_run:
        with time_limit(args.timeout, fix="allow more with --timeout"):
            return _show_would_download([(node.name, would_download(node, request)) for node, request in asked], screen)
    began = time.monotonic()
    brought: list[tuple[str, Downloaded]] = []
    with resumable(args, screen):
        for node, request in asked:
            with TransferPicture(screen) as picture:
                brought.append((node.name, download(node, request, partial(_show_pace, picture, node.name))))
    seconds = time.monotonic() - began
    if screen.as_json:
        documents = [{"node": name, **done.as_json(), "seconds": round(seconds, 3)} for name, done in brought]
        screen.json(documents[0] if len(documents) == 1 else {"nodes": documents})
        return 0
    for name, done in brought:
        screen.show(f"{name}:{done.directory}: {_brought_words(done, seconds)}")
    if len(brought) < len(list(inventory.nodes)):
        place = f"{brought[0][0]}:{brought[0][1].directory}"
        screen.show(f"next: l40s-deploy checkpoint push {shlex.quote(place)}")
    return 0


def _show_would_download(outcomes: Sequence[tuple[str, WouldDownload]], screen: Screen) -> int:
    if screen.as_json:
        screen.json({"dry_run": True, "nodes": [{"node": name, **would.as_json()} for name, would in outcomes]})
        return 0
    for name, would in outcomes:
        what = f"{in_words(would.bytes)} in {would.files} files of {would.commit}"
        kept = f", of which {in_words(would.held)} are already there from an interrupted run" if would.held else ""
        words = f"would be downloaded: {what}{kept}; {in_words(would.free)} are free"
        if would.there:
            words = f"already exists; would be compared with {what}"
        screen.show(f"{name}:{would.directory}: {words}")
    screen.out.print("nothing was downloaded")
    return 0


def _show_pace(picture: TransferPicture, node: str, now: HubLine) -> None:
    picture.show([Transfer(node, now.done, now.total, f"{now.doing} {{}}")])


def run_push(args: argparse.Namespace, screen: Screen) -> int:
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
        return _rehearse_push(inventory, request, screen)
    with resumable(args, screen), _PushPicture(screen) as picture:
        pushed = push(inventory, request, picture)
    if screen.as_json:
        screen.json(_push_document(pushed))
    else:
        _show_pushed(pushed, screen)
    return _first_code(pushed.nodes.failures.values())


def _first_code(failures: Iterable[DeployError]) -> int:
    return next((failure.exit_code for failure in failures), 0)


def _rehearse_push(inventory: Inventory, request: CheckpointPushRequest, screen: Screen) -> int:
    from orchestrator.checkpoint.steps.push import destinations

    where = destinations(inventory, request)
    if screen.as_json:
        nodes = [{"name": name, "directory": directory} for name, directory in where.items()]
        screen.json({"dry_run": True, "source": request.source, "nodes": nodes})
        return 0
    for name, directory in where.items():
        doing = "the files that differ would be replaced" if request.repair else "would be copied"
        screen.show(f"{name}: {request.source} -> {directory}: {doing}")
    screen.out.print("nothing was copied")
    return 0


def _push_document(pushed: PushResult) -> dict[str, Any]:
    hops, failures = pushed.nodes.values, pushed.nodes.failures
    nodes = [
        {
            "name": name,
            "directory": directory,
            "complete": pushed.complete(name),
            "there_before": pushed.there_before(name),
            "files_sent": hops[name].sent if name in hops else 0,
            "same_as": pushed.shared.get(name),
            "error": failures[name].as_json() if name in failures else None,
        }
        for name, directory in pushed.directories.items()
    ]
    return {
        "source": pushed.source,
        "bytes": pushed.bytes,
        "files": pushed.files,
        "seconds": round(pushed.seconds, 3),
        "network": pushed.network,
        "nodes": nodes,
    }


def _show_pushed(pushed: PushResult, screen: Screen) -> None:
    for name, directory in pushed.directories.items():
        if failure := pushed.nodes.failures.get(name):
            _show_failure(failure, screen)
            continue
        if hop := pushed.nodes.values.get(name):
            state = f": {_state(hop, pushed.repaired)}"
        else:
            state = f": the same directory as {pushed.shared[name]}'s"
            state += "" if pushed.complete(name) else ", not complete"
        screen.show(f"{name}: {directory}{state}")
    if arrived := len(pushed.nodes.values):
        words = f"{in_words(pushed.bytes)} in {pushed.files} files on {counted(arrived, 'node')}"
        screen.out.print(f"{words} after {duration(pushed.seconds)}")
    if not pushed.directories:
        screen.out.print("nothing to do: SRC is on the only node")


def _state(hop: Hop, repaired: bool) -> str:
    if hop.there or (repaired and not hop.sent):
        return "already there; all checksums match"
    if repaired:
        return f"intact, all checksums match; {counted(hop.sent, 'file')} sent"
    return "complete; all checksums match"


def _show_failure(failure: DeployError, screen: Screen) -> None:
    screen.out.print(printable(f"{failure.where}: {failure.what}"), style="bold red")
    screen.show(f"  fix: {failure.fix}")


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


def run_verify(args: argparse.Namespace, screen: Screen) -> int:
    """0 when all copies are the same; 7 where one differs or is missing; else the first failure's code."""
    from orchestrator.checkpoint.steps.verify import verify

    inventory = open_inventory(args, screen)
    nodes = tuple(dict.fromkeys(args.node))
    again = "run it again: files already read are not read again"
    with _VerifyPicture(screen) as picture, time_limit(args.timeout, fix=again):
        verified = verify(inventory, args.what, to=nodes, fresh=args.fresh, report=picture.read)
    if screen.as_json:
        screen.json(_verify_document(verified))
    else:
        _show_verified(verified, screen)
    return Exit.DIFFERS if verified.differences else _first_code(verified.copies.failures.values())


def _verify_document(verified: VerifyResult) -> dict[str, Any]:
    copies, failures = verified.copies.values, verified.copies.failures
    nodes = [
        {
            "name": name,
            "directory": directory,
            "files": len(copies.get(name, {})) or None,
            "same_as": verified.shared.get(name),
            "error": failures[name].as_json() if name in failures else None,
        }
        for name, directory in verified.directories.items()
    ]
    differences = [
        {
            "path": difference.path,
            "odd": list(difference.odd),
            "digests": {node: sha or None for node, sha in difference.digests.items()},
        }
        for difference in verified.differences
    ]
    return {
        "same": verified.same,
        "seconds": round(verified.seconds, 3),
        "differences": differences,
        "fixes": list(verified.repairs()),
        "nodes": nodes,
    }


def _show_verified(verified: VerifyResult, screen: Screen) -> None:
    for name, owner in verified.shared.items():
        screen.show(f"{name}: the same directory as {owner}'s, read once")
    for difference in verified.differences:
        screen.out.print(printable(f"{difference.path}: {difference.words()}"), style="bold red")
    for failure in verified.copies.failures.values():
        _show_failure(failure, screen)
    read = verified.copies.values
    files = max((len(copy) for copy in read.values()), default=0)
    took = duration(verified.seconds)
    if verified.same:
        copies = f"{len(read)} copies are the same" if len(read) > 1 else "only one copy could be read"
        screen.out.print(f"{copies}: {files} files by SHA-256, {took}")
    elif verified.differences:
        screen.out.print(f"{len(verified.differences)} of {files} files differ, {took}")
        for fix in verified.repairs():
            screen.show(f"  fix: {fix}")


class _VerifyPicture(TransferPicture):
    """Told from the nodes' threads."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        self._seen: dict[str, Transfer] = {}

    def read(self, node: str, done: int, total: int) -> None:
        """How many bytes a node has read."""
        self._seen[node] = Transfer(node, done, total, "{} read")
        self.show([transfer for _, transfer in sorted(self._seen.copy().items())])
