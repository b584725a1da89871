"""Verb `digests`: SHA-256 of every file of a checkpoint here, those that are known already without reading.

Lines say how far it is twice a second; the digests come at the end. It ends early when its reader is gone.

A digest is kept under device and inode, and holds while size, mtime and ctime are as they were: rsync and cp can set
an mtime back, nobody can set a ctime. Silent disk errors are not noticed in this way; `fresh` reads again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.on_node.directory import listed, refuse_unfinished
from orchestrator.checkpoint.on_node.push.target import PARTIAL
from orchestrator.checkpoint.on_node.work import FileWork, say
from orchestrator.node import files
from orchestrator.node.os_errors import os_failures
from orchestrator.node.requests import in_parts, request_of, tell
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.jobs import DigestsLine, DigestsRequest, Progress

FILE = "digests.json"
CHUNK = 4 << 20
MOST = 20_000
"""Remembered digests; the oldest go first."""

Counted = Callable[[int], None]
"""Told how many more bytes have been read; raises to stop."""


class Digests:
    """What is remembered on this node. Safe to use from several threads."""

    def __init__(self, state_dir: str) -> None:
        self._path = f"{state_dir}/{FILE}"
        self._lock = threading.Lock()
        self._known: dict[str, Any] = files.read_json(self._path)

    def known(self, status: os.stat_result) -> str | None:
        """The digest of the file that was looked at, None where it has to be read."""
        with self._lock:
            kept = self._known.get(_key(status))
        if isinstance(kept, list) and kept[:-1] == _identity(status):
            return str(kept[-1])
        return None

    def keep(self, status: os.stat_result, digest: str) -> None:
        """Remember; a state directory that can't be written makes the next run slower and is no fault."""
        with self._lock:
            self._known.pop(_key(status), None)
            self._known[_key(status)] = [*_identity(status), digest]
            for oldest in list(self._known)[:-MOST]:
                del self._known[oldest]
            with contextlib.suppress(OSError):
                Path(self._path).parent.mkdir(mode=0o711, parents=True, exist_ok=True)
                files.write_json(self._path, self._known)

    def of(self, path: Path, counted: Counted, *, fresh: bool = False) -> str:
        """A file's digest, read only where it is not known. Raises DeployError where it can't be read or changes."""
        try:
            before = path.stat()
            if (digest := None if fresh else self.known(before)) is not None:
                counted(before.st_size)
                return digest
            digest = _hashed(path, counted)
            after = path.stat()
        except OSError as wrong:
            what = f"can't be read: {wrong.strerror}"
            raise DeployError(
                what, where=str(path), fix="check its owner and mode, and the disk (`dmesg`)", kind="unreadable"
            ) from None
        if (_key(before), _identity(before)) != (_key(after), _identity(after)):
            raise DeployError(
                "changed while it was read", where=str(path), fix="wait until no process writes to it", kind="changed"
            )
        self.keep(after, digest)
        return digest


def _hashed(path: Path, counted: Counted) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while data := file.read(CHUNK):
            digest.update(data)
            counted(len(data))
    return digest.hexdigest()


def _key(status: os.stat_result) -> str:
    return f"{status.st_dev}:{status.st_ino}"


def _identity(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def stream(request: dict[str, Any]) -> None:
    """Read the files and report their digests."""
    asked = request_of(DigestsRequest, request)
    with os_failures(asked.directory):
        directory = Path(asked.directory)
        _refuse_absent(directory)
        paths, digests = listed(directory), Digests(files.state_dir(asked.state_dir))
        work = FileWork(Progress(sum((directory / path).stat().st_size for path in paths)))

        def digest(path: str) -> tuple[str, str]:
            return path, digests.of(directory / path, work.add, fresh=asked.fresh)

        results_by_path = work.on(paths, digest, lambda now: say(DigestsLine(bytes=now.done, total=now.total)))
        for part in in_parts(results_by_path):
            tell(DigestsLine(digests=dict(part)).as_json())
        tell(DigestsLine(bytes=work.now.total, total=work.now.total, files=len(paths)).as_json())


def _refuse_absent(directory: Path) -> None:
    if not directory.is_dir():
        if directory.with_name(directory.name + PARTIAL).is_dir():
            what = "is incomplete: a push to it was interrupted"
            raise DeployError(
                what,
                where=str(directory),
                fix="run the same `checkpoint push` again to continue",
                kind="unfinished",
            )
        fix = "copy it there with `checkpoint push`, or correct the name"
        raise DeployError("no such directory", where=str(directory), fix=fix, kind="no-checkpoint")
    refuse_unfinished(directory)
