"""Verb `push-offer`: the source of a push. Reads every file once for its SHA-256, and offers it from then on.

The answer is lines: first some {"files": [[path,
source, size], ...]}, then {"port", "secret"}, then {"bytes": how many have been read} twice a second, until nobody
reads any more.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.on_node.files import files_below
from orchestrator.checkpoint.on_node.push.giver import Giver, own_folder
from orchestrator.checkpoint.on_node.push.target import PARTIAL, FileEntry
from orchestrator.checkpoint.on_node.target import JOURNAL as REBLOCK_JOURNAL
from orchestrator.node import files
from orchestrator.node.agent import weights
from orchestrator.node.failure import Failure, failure_of, os_failures
from orchestrator.node.requests import request_of
from orchestrator.node.sha256 import Digests
from orchestrator.node.telling import TICK_S, in_parts, reader_is_gone, tell
from orchestrator.protocol.jobs import OfferRequest

MOST_READERS = 4
"""Files that are read side by side; more make a disk slower, and a network is slower than four of them."""


def stream(request: dict[str, Any]) -> None:
    """Offer a directory until the caller goes away. It is only read."""
    asked = request_of(OfferRequest, request)
    with os_failures(asked.directory):
        _offer(asked, files.state_dir(asked.state_dir))


def _offer(asked: OfferRequest, state: str) -> None:
    manifest = read(Path(asked.directory))
    giver = Giver(own_folder(state, "offer"), manifest.root)
    try:
        port = giver.listen(asked.address, asked.port)
        listed = [[entry.path, entry.source, entry.size] for entry in manifest.entries]
        for part in in_parts(listed):
            tell({"files": part})
        tell({"port": port, "secret": giver.secret})
        reading = SourceDigests(manifest, Digests(state), giver)
        threading.Thread(target=reading.work, daemon=True).start()
        while not reader_is_gone(TICK_S):
            tell({"bytes": reading.bytes, "complete": reading.complete})
            if reading.failure is not None:
                raise reading.failure
        reading.stop()
    finally:
        giver.close()


class SourceDigests:
    """The source's digests, made in the files' order, so that the first can leave while the others are read."""

    def __init__(self, manifest: Manifest, digests: Digests, giver: Giver) -> None:
        self.bytes = 0
        self.complete = False
        self.failure: Failure | None = None
        self._manifest = manifest
        self._digests = digests
        self._giver = giver
        self._stopped = False
        self._lock = threading.Lock()

    def work(self) -> None:
        """Read everything."""
        try:
            self._read_all(self._manifest.entries)
            self.complete = True
        except Exception as wrong:
            self.failure = failure_of(wrong, str(self._manifest.root), "push-offer")

    def stop(self) -> None:
        """Threads end at their next step."""
        self._stopped = True

    def _read_all(self, entries: Sequence[FileEntry]) -> None:
        with ThreadPoolExecutor(max_workers=min(MOST_READERS, os.cpu_count() or 1)) as pool:
            for done in [pool.submit(self._read, entry) for entry in entries]:
                done.result()

    def _read(self, entry: FileEntry) -> None:
        if not self._stopped:
            self._giver.offer(entry.path, self._digests.of(self._manifest.root / entry.source, self._counted))

    def _counted(self, count: int) -> None:
        if self._stopped:
            raise Failure("stopped", "the controller no longer waits for it", "push-offer")
        with self._lock:
            self.bytes += count


@dataclass(frozen=True, slots=True)
class Manifest:
    """root: what has to be offered so that every entry's bytes are below it (links may lead out of the directory)"""

    root: Path
    entries: tuple[FileEntry, ...]

    @property
    def bytes(self) -> int:
        return sum(entry.size for entry in self.entries)


def read(directory: Path) -> Manifest:
    """The files of a complete checkpoint. Raises Failure for one that is not, or that can't be read."""
    if not directory.is_dir():
        raise Failure(
            "no-checkpoint", "no such directory", str(directory), "specify the directory that contains config.json"
        )
    _refuse_unfinished(directory)
    found = listed(directory)
    real = {path: Path(os.path.realpath(directory / path)) for path in found}
    root = Path(os.path.commonpath([os.path.realpath(directory), *real.values()]))
    if root == Path("/"):
        away = next(path for path, target in real.items() if directory.resolve() not in target.parents)
        what = f"{away} is a symbolic link to {real[away]}, outside the directory"
        raise Failure("far-link", what, str(directory), "make a directory of regular files: `cp -rL`")
    return Manifest(root, tuple(_entry(path, target, root) for path, target in real.items()))


def _refuse_unfinished(directory: Path) -> None:
    if directory.name.endswith(PARTIAL):
        what = "is the unfinished copy of another push"
        raise Failure("unfinished", what, str(directory), "finish that push first, or specify a complete checkpoint")
    if (directory / REBLOCK_JOURNAL).exists():
        what = "its re-blocking was interrupted"
        raise Failure("unfinished", what, str(directory), "run `l40s-deploy checkpoint reblock` again to continue")
    for fault in weights.check(directory):
        raise fault


def listed(directory: Path) -> list[str]:
    """Paths of the files that belong to a checkpoint, sorted. Raises Failure: none, or one that can't be sent."""
    found = sorted(files_below(directory))
    for path in found:
        if not path.isprintable():
            raise Failure("odd-name", f"has a file name that can't be sent: {path!r}", str(directory), "rename")
    if not found:
        raise Failure(
            "no-checkpoint", "contains no files", str(directory), "specify the directory that contains config.json"
        )
    return found


def _entry(path: str, real: Path, root: Path) -> FileEntry:
    if not os.access(real, os.R_OK):
        raise Failure("unreadable", "can't be read", str(real), "check its owner and mode")
    return FileEntry(path, real.relative_to(root).as_posix(), real.stat().st_size)
