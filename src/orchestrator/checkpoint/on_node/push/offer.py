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
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.on_node.push.giver import Giver, own_folder
from orchestrator.checkpoint.on_node.push.manifest import Manifest, read
from orchestrator.checkpoint.on_node.push.target import FileEntry
from orchestrator.node import files
from orchestrator.node.failure import Failure
from orchestrator.node.os_failure import failure_of, os_failures
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
