"""`l40s-deploy checkpoint verify`: are all nodes' copies of a checkpoint the same?"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from orchestrator.checkpoint.steps.verify import repairs
from orchestrator.cli.options import add_nodes, add_time_limit, add_usual, open_inventory
from orchestrator.cli.screen import Screen, printable
from orchestrator.cli.transfers import Transfer, TransferPicture, duration, time_limit
from orchestrator.model.errors import Exit

if TYPE_CHECKING:
    from orchestrator.checkpoint.steps.verify import VerifyResult

EXAMPLE = "l40s-deploy checkpoint verify DeepSeek-V3-0324-Block64x64"


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of `verify`."""
    add_usual(parser, EXAMPLE, "l40s-deploy checkpoint verify /models/DeepSeek-V3-0324 --fresh --json")
    parser.add_argument(
        "what", metavar="DIR|MODEL", help="absolute path on the nodes, or a name below their model root"
    )
    add_nodes(parser, "check only this node (repeatable; default: all)")
    add_time_limit(parser)
    parser.add_argument(
        "--fresh", action="store_true", help="read every byte, even where the checksum is already known"
    )


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when all copies are the same; 7 where one differs or is missing; else the first failure's code."""
    from orchestrator.checkpoint.steps.verify import verify

    inventory = open_inventory(args, screen)
    nodes = tuple(dict.fromkeys(args.node))
    again = "run it again: files already read are not read again"
    with _VerifyPicture(screen) as picture, time_limit(args.timeout, fix=again):
        verified = verify(inventory, args.what, to=nodes, fresh=args.fresh, report=picture.read)
    screen.json(_document(verified)) if screen.as_json else _show(verified, screen)
    if verified.differences:
        return Exit.DIFFERS
    return next((failure.exit_code for failure in verified.copies.failures.values()), 0)


def _document(verified: VerifyResult) -> dict[str, Any]:
    return {
        "same": verified.same,
        "seconds": round(verified.seconds, 3),
        "differences": [
            {
                "path": one.path,
                "odd": list(one.odd),
                "digests": {node: sha or None for node, sha in one.digests.items()},
            }
            for one in verified.differences
        ],
        "fixes": _fixes(verified),
        "nodes": [_node(name, verified) for name in verified.directories],
    }


def _fixes(verified: VerifyResult) -> list[str]:
    return list(repairs(verified.differences, verified.directories, list(verified.copies.values)))


def _node(name: str, verified: VerifyResult) -> dict[str, Any]:
    failure = verified.copies.failures.get(name)
    return {
        "name": name,
        "directory": verified.directories[name],
        "files": len(verified.copies.values.get(name, {})) or None,
        "same_as": verified.shared.get(name),
        "error": failure.as_json() if failure else None,
    }


def _show(verified: VerifyResult, screen: Screen) -> None:
    for name, owner in verified.shared.items():
        screen.out.print(printable(f"{name}: the same directory as {owner}'s, read once"))
    for difference in verified.differences:
        screen.out.print(printable(f"{difference.path}: {difference.words()}"), style="bold red")
    for failure in verified.copies.failures.values():
        screen.out.print(printable(f"{failure.where}: {failure.what}"), style="bold red")
        screen.out.print(printable(f"  fix: {failure.fix}"))
    read = verified.copies.values
    files = max((len(copy) for copy in read.values()), default=0)
    took = duration(verified.seconds)
    if verified.same:
        copies = f"{len(read)} copies are the same" if len(read) > 1 else "only one copy could be read"
        screen.out.print(f"{copies}: {files} files by SHA-256, {took}")
    elif verified.differences:
        screen.out.print(f"{len(verified.differences)} of {files} files differ, {took}")
        for fix in _fixes(verified):
            screen.out.print(printable(f"  fix: {fix}"))


class _VerifyPicture(TransferPicture):
    """Told from the nodes' threads."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(screen)
        self._seen: dict[str, Transfer] = {}

    def read(self, node: str, done: int, total: int) -> None:
        """How many bytes a node has read."""
        self._seen[node] = Transfer(node, done, total, "{} read")
        self.show([one for _, one in sorted(self._seen.copy().items())])
