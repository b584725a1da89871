"""Verb `rank-files`: per-rank weight files that an engine has written, kept on this node and checked.

The engine writes them into a directory that all ranks share (sglang 0.5.23, srt/model_loader/loader.py:
PreshardedModelLoader), and reads only those of its own ranks. `keep` copies these, with the engine's plan of who reads
what, and writes our manifest last: whose they are (the key), sizes and SHA-256. `check` reads them all again.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.node import below, files
from orchestrator.node.cache.weight_files import of_ranks
from orchestrator.node.failure import Failure
from orchestrator.node.os_failure import os_failures
from orchestrator.node.requests import request_of
from orchestrator.node.telling import TICK_S, reader_is_gone, tell
from orchestrator.protocol.jobs import RankFilesLine, RankFilesRequest
from orchestrator.protocol.looks import RankFiles

MANIFEST = "l40s-ranks-"
CHUNK = 8 << 20
_PLANS = ("checksum.json", "READY")
"""The engine's own, beside the files; READY is what it looks for first, so it comes last."""


def held(root: str) -> tuple[RankFiles, ...]:
    """What manifests below a directory of such folders say, as far as the files are there with their sizes."""
    try:
        folders = sorted(one.name for one in os.scandir(root) if one.is_dir())
    except OSError:
        return ()
    return tuple(found for folder in folders for found in _held(Path(root, folder)))


def _held(folder: Path) -> Iterator[RankFiles]:
    for path in sorted(folder.glob(f"{MANIFEST}*.json")):
        manifest = files.read_json(str(path))
        try:
            ranks = tuple(int(rank) for rank in manifest["ranks"])
            there = all(files.size(folder / below.plain_path(one["name"])) == one["bytes"] for one in manifest["files"])
            size = sum(int(one["bytes"]) for one in manifest["files"])
            yield RankFiles(folder=folder.name, ranks=ranks, key=str(manifest["key"]), complete=there, bytes=size)
        except (KeyError, TypeError, ValueError):
            continue


def stream(request: dict[str, Any]) -> None:
    """Keep or check; lines report progress."""
    asked = request_of(RankFilesRequest, request)
    with os_failures(asked.folder):
        if asked.op == "keep":
            _keep(asked)
        elif asked.op == "check":
            _check(Path(asked.folder))
        else:
            raise Failure("bad-request", f"rank-files has no op {asked.op!r}", "request")


def _keep(asked: RankFilesRequest) -> None:
    source, target = Path(asked.source), Path(asked.folder)
    paths = [Path(path) for path in of_ranks(str(source), asked.ranks)]
    if not paths:
        raise Failure(
            "no-rank-files",
            "holds no complete per-rank files for these ranks",
            str(source),
            "run `l40s-deploy checkpoint preshard` again; the engine's log says why it wrote none",
        )
    inner = paths[0].parent
    paths = [*paths, *(inner / name for name in _PLANS)]
    meter = _Meter(sum(path.stat().st_size for path in paths))
    listed = []
    for path in paths:
        name = str(path.relative_to(source))
        digest = _carry(path, target / name, meter) if source != target else _digest(path, meter)
        listed.append({"name": name, "bytes": path.stat().st_size, "sha256": digest})
    manifest = {"key": asked.key, "ranks": list(asked.ranks), "files": listed}
    files.write_json(str(target / f"{MANIFEST}{min(asked.ranks):03d}-{max(asked.ranks):03d}.json"), manifest)
    tell(RankFilesLine(bytes=meter.done, total=meter.total, files=len(listed)).as_json())


def _carry(path: Path, to: Path, meter: _Meter) -> str:
    """Copy a file completely or not at all; returns its SHA-256."""
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(f".{to.name}.part")
    sha = hashlib.sha256()
    with path.open("rb") as source, part.open("wb") as target:
        while chunk := source.read(CHUNK):
            target.write(chunk)
            sha.update(chunk)
            meter.count(len(chunk))
        target.flush()
        os.fsync(target.fileno())
    os.replace(part, to)
    return sha.hexdigest()


def _digest(path: Path, meter: _Meter) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as source:
        while chunk := source.read(CHUNK):
            sha.update(chunk)
            meter.count(len(chunk))
    return sha.hexdigest()


def _check(folder: Path) -> None:
    wanted: dict[str, tuple[int, str]] = {}
    for path in sorted(folder.glob(f"{MANIFEST}*.json")):
        for one in files.read_json(str(path)).get("files", ()):
            wanted[below.plain_path(str(one["name"]))] = (int(one["bytes"]), str(one["sha256"]))
    if not wanted:
        raise Failure(
            "no-rank-files", "has no manifest of per-rank files", str(folder), "run `l40s-deploy checkpoint preshard`"
        )
    meter = _Meter(sum(size for size, _ in wanted.values()))
    odd = []
    for name, (size, digest) in wanted.items():
        if files.size(folder / name) != size or _digest(folder / name, meter) != digest:
            odd.append(name)
    tell(RankFilesLine(bytes=meter.done, total=meter.total, files=len(wanted), differ=tuple(odd)).as_json())


class _Meter:
    """Reports progress twice a second, and ends the work when the reader is gone."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self._told = total, 0, 0.0

    def count(self, bytes_: int) -> None:
        self.done += bytes_
        if time.monotonic() - self._told >= TICK_S:
            self._told = time.monotonic()
            tell(RankFilesLine(bytes=self.done, total=self.total).as_json())
            if reader_is_gone(0):
                raise BrokenPipeError
