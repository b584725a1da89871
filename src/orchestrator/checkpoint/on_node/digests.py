"""Verb `digests`: SHA-256 of every file of a checkpoint here, those that are known already without reading.

Lines say how far it is twice a second; the digests come at the end. It ends early when its reader is gone.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.on_node.push.offer import listed
from orchestrator.checkpoint.on_node.push.target import PARTIAL
from orchestrator.checkpoint.on_node.target import JOURNAL as REBLOCK_JOURNAL
from orchestrator.node import files
from orchestrator.node.failure import Failure, os_failures
from orchestrator.node.requests import request_of
from orchestrator.node.sha256 import Digests
from orchestrator.node.telling import TICK_S, in_parts, reader_is_gone, tell
from orchestrator.protocol.jobs import DigestsLine, DigestsRequest

MOST_READERS = 8


def stream(request: dict[str, Any]) -> None:
    """Read the files and report their digests."""
    asked = request_of(DigestsRequest, request)
    with os_failures(asked.directory):
        _read(asked, Path(asked.directory))


def _read(asked: DigestsRequest, directory: Path) -> None:
    _refuse_unfinished(directory)
    paths = listed(directory)
    digests = Digests(files.state_dir(asked.state_dir))
    meter = _ReadMeter()
    with ThreadPoolExecutor(max_workers=min(MOST_READERS, os.cpu_count() or 1)) as pool:
        found = {path: pool.submit(digests.of, directory / path, meter.counted, fresh=asked.fresh) for path in paths}
        total = sum((directory / path).stat().st_size for path in paths)
        try:
            while wait(found.values(), timeout=0).not_done:
                tell(DigestsLine(bytes=meter.bytes, total=total).as_json())
                if reader_is_gone(TICK_S):
                    raise BrokenPipeError
            result = {path: done.result() for path, done in found.items()}
        finally:
            meter.stopped = True
            pool.shutdown(cancel_futures=True)
    for part in in_parts(result.items()):
        tell(DigestsLine(digests=dict(part)).as_json())
    tell(DigestsLine(bytes=total, total=total, files=len(result)).as_json())


def _refuse_unfinished(directory: Path) -> None:
    if directory.is_dir():
        if (directory / REBLOCK_JOURNAL).exists():
            what = "its re-blocking was interrupted"
            raise Failure("unfinished", what, str(directory), "run `l40s-deploy checkpoint reblock` again to continue")
        return
    if directory.with_name(directory.name + PARTIAL).is_dir():
        what = "is incomplete: a push to it was interrupted"
        raise Failure("unfinished", what, str(directory), "run `l40s-deploy checkpoint push` again to continue")
    raise Failure(
        "no-checkpoint",
        "no such directory",
        str(directory),
        "copy it there with `l40s-deploy checkpoint push`, or correct the name",
    )


class _ReadMeter:
    """Bytes read by all threads together."""

    def __init__(self) -> None:
        self.bytes = 0
        self.stopped = False
        self._lock = threading.Lock()

    def counted(self, count: int) -> None:
        if self.stopped:
            raise Failure("stopped", "the controller no longer waits for it", "digests")
        with self._lock:
            self.bytes += count
