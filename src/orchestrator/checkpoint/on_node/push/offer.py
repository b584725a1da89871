"""Verb `push-offer`: the source of a push. Reads every file once for its SHA-256, and offers it from then on.

The answer is lines: first some {"files": [[path,
source, size], ...]}, then {"port", "secret"}, then {"bytes": how many have been read} twice a second, until nobody
reads any more.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.on_node.digests import Digests, Reading
from orchestrator.checkpoint.on_node.directory import WHICH, listed, refuse_unfinished
from orchestrator.checkpoint.on_node.push.giver import Giver, own_folder
from orchestrator.checkpoint.on_node.push.target import PARTIAL, FileEntry
from orchestrator.node import files
from orchestrator.node.agent import weights
from orchestrator.node.failure import Failure, os_failures
from orchestrator.node.requests import TICK_S, in_parts, reader_is_gone, request_of, tell
from orchestrator.protocol.jobs import OfferRequest

MOST_READERS = 4
"""Files that are read side by side; more make a disk slower, and a network is slower than four of them."""


def stream(request: dict[str, Any]) -> None:
    """Offer a directory until the caller goes away. It is only read."""
    asked = request_of(OfferRequest, request)
    with os_failures(asked.directory):
        _offer(asked, files.state_dir(asked.state_dir))


def _offer(asked: OfferRequest, state: str) -> None:
    root, entries = read(Path(asked.directory))
    giver = Giver(own_folder(state, "offer"), root)
    digests, reading = Digests(state), Reading("push-offer")

    def offer(entry: FileEntry) -> None:
        giver.offer(entry.path, digests.of(root / entry.source, reading.counted))

    try:
        port = giver.listen(asked.address, asked.port)
        for part in in_parts([entry.path, entry.source, entry.size] for entry in entries):
            tell({"files": part})
        tell({"port": port, "secret": giver.secret})
        with reading.of(entries, offer, most=MOST_READERS):  # in their order: the first can leave while others are read
            while not reader_is_gone(TICK_S):
                tell({"bytes": reading.bytes, "complete": reading.complete()})
    finally:
        giver.close()


def read(directory: Path) -> tuple[Path, tuple[FileEntry, ...]]:
    """The files of a complete checkpoint, below what has to be offered: links may lead out of the directory.

    Raises Failure for one that is not complete, or that can't be read.
    """
    if not directory.is_dir():
        raise Failure("no-checkpoint", "no such directory", str(directory), WHICH)
    if directory.name.endswith(PARTIAL):
        what = "is the unfinished copy of another push"
        raise Failure("unfinished", what, str(directory), "finish that push first, or specify a complete checkpoint")
    refuse_unfinished(directory)
    for fault in weights.check(directory):
        raise fault
    real = {path: Path(os.path.realpath(directory / path)) for path in listed(directory)}
    root = Path(os.path.commonpath([os.path.realpath(directory), *real.values()]))
    if root == Path("/"):
        away = next(path for path, target in real.items() if directory.resolve() not in target.parents)
        what = f"{away} is a symbolic link to {real[away]}, outside the directory"
        raise Failure("far-link", what, str(directory), "make a directory of regular files: `cp -rL`")
    return root, tuple(_entry(path, target, root) for path, target in real.items())


def _entry(path: str, real: Path, root: Path) -> FileEntry:
    if not os.access(real, os.R_OK):
        raise Failure("unreadable", "can't be read", str(real), "check its owner and mode")
    return FileEntry(path, real.relative_to(root).as_posix(), real.stat().st_size)
