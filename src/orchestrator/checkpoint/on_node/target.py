"""The directory that is written: refused where it could hurt, locked while it grows, complete only at the end.

Every file appears under its own name, by a rename, once it is complete. The journal (unfinished.py) says which source
and which block the unfinished files belong to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.on_node.directory import JOURNAL
from orchestrator.checkpoint.on_node.shard import ShardLayout, write_at
from orchestrator.checkpoint.on_node.unfinished import Unfinished, sync_directory
from orchestrator.node.os_errors import DENIED, os_failure
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.sizes import in_words

PARTIAL = ".part"


class TargetState(str, Enum):
    """What the directory is when a run finds it."""

    EMPTY = "empty"
    UNFINISHED = "unfinished"
    """An earlier run of the same request was interrupted."""
    FOREIGN = "foreign"
    """Files and no journal: finished, or something else altogether."""


def check_apart(source: Path, target: Path) -> None:
    """Refuse a target that is the source, inside it or around it, by whatever name or mount."""
    same = [path for path in (target, *target.parents) if _same(path, source)]
    around = [path for path in source.parents if _same(path, target)]
    if same or around:
        if _same(target, source):
            word = "is"
        elif same:
            word = "is inside"
        else:
            word = "contains"
        fix = "specify a directory beside the source"
        raise DeployError(f"the target {word} the source {source}", where=str(target), fix=fix, kind="same-directory")


def target_state(target: Path) -> TargetState:
    """What is there now; a target that does not exist is empty."""
    if not target.exists():
        return TargetState.EMPTY
    if not target.is_dir():
        raise DeployError("is not a directory", where=str(target), fix="specify a directory", kind="target")
    names = {path.name for path in target.iterdir()} - {"lost+found"}
    if JOURNAL in names:
        return TargetState.UNFINISHED
    return TargetState.FOREIGN if names else TargetState.EMPTY


@contextmanager
def held(target: Path, request: Mapping[str, Any]) -> Iterator[None]:
    """Create the directory, lock its journal, and write the request into it. The journal stays when this ends."""
    with target_failures(target):
        descriptor = Unfinished(target, JOURNAL).take("run")
    try:
        with target_failures(target):
            _record(descriptor, target, request)
        yield
    finally:
        os.close(descriptor)


def is_whole(path: Path, layout: ShardLayout) -> bool:
    """Whether a shard has been written: it got its name when its last byte was there, so head and size tell."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if os.fstat(descriptor).st_size != layout.size:
            return False
        return os.pread(descriptor, len(layout.head), 0) == layout.head
    except OSError:
        return False
    finally:
        os.close(descriptor)


@contextmanager
def growing(path: Path) -> Iterator[int]:
    """A file descriptor to write a file through; the file gets its name when the block ends well: the bytes are on
    the disk before the name, so that a power cut leaves no empty file with a good name."""
    partial = path.with_name(f".{path.name}{PARTIAL}")
    with suppress(FileNotFoundError):
        partial.unlink()
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(partial, flags, 0o644)
    try:
        yield descriptor
        os.fsync(descriptor)
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    finally:
        os.close(descriptor)


def finish(target: Path, texts: Mapping[str, bytes]) -> None:
    """Make the target what a loader takes for a checkpoint: the index, then config.json, then no journal."""
    sync_directory(target)
    for name, text in texts.items():
        write_file(target / name, text)
    Unfinished(target, JOURNAL).finish()


def write_file(path: Path, data: bytes) -> None:
    """Write a small file completely or not at all."""
    with growing(path) as descriptor:
        write_at(descriptor, data, 0)


def check_space(target: Path, needed: int, shared: int) -> None:
    """Refuse before the first byte where the file system has less than this many bytes free.

    shared: bytes of the new files that take no space because their blocks are the source's; for the message
    """
    status = os.statvfs(target)
    free = status.f_bavail * status.f_frsize
    if status.f_blocks == 0 or free >= needed:
        return
    saved = f" ({in_words(shared)} more is shared with the source)" if shared else ""
    what = f"{in_words(needed)} is needed{saved}, but only {in_words(free)} is free"
    fix = f"free {in_words(needed - free)} there, or specify a target on another disk"
    raise DeployError(what, where=str(target), fix=fix, kind="no-space")


@contextmanager
def target_failures(target: Path) -> Iterator[None]:
    """Turn what a file system says about the target into a failure that tells what to do."""
    try:
        yield
    except OSError as wrong:
        if wrong.errno in DENIED:
            where, fix = str(wrong.filename or target), "specify a target that this user can write to"
            raise DeployError(f"cannot be written: {wrong.strerror}", where=where, fix=fix, kind="read-only") from None
        raise os_failure(wrong, str(target)) from None


def _same(first: Path, other: Path) -> bool:
    try:
        return os.path.samestat(first.stat(), other.stat())
    except OSError:
        return False


def _record(descriptor: int, target: Path, wanted: Mapping[str, Any]) -> None:
    """Write the request, or compare it with the one that the unfinished files belong to."""
    size = os.fstat(descriptor).st_size
    try:
        journal = json.loads(os.pread(descriptor, size, 0)) if size else None
    except ValueError:
        journal = None  # killed while the journal itself was written: nothing else was there yet
    if not isinstance(journal, dict):
        if others := sorted(path.name for path in target.iterdir() if path.name not in (JOURNAL, "lost+found")):
            what = f"its journal {JOURNAL} can't be read, so it is not known what {others[0]} belongs to"
            raise DeployError(
                what, where=str(target), fix="remove the target, or specify another one", kind="other-run"
            )
        os.ftruncate(descriptor, 0)
        write_at(descriptor, json.dumps(wanted, indent=1).encode(), 0)
        os.fsync(descriptor)
        return
    other = {key for key in wanted if journal.get(key) != wanted[key]}
    if other - {"source"}:
        what = (
            f"contains the unfinished result of a run from {journal.get('source')} to blocks of {journal.get('block')}"
        )
        if other == {"files"}:
            what = f"was started from {wanted['source']}, whose files have changed since"
        raise DeployError(what, where=str(target), fix="remove the target, or specify another one", kind="other-run")
