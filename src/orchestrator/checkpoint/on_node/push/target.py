"""Where a pushed checkpoint arrives: beside its place under another name, and in its place only once it is complete.

DST.l40s-partial/                 the finished files, under their names
DST.l40s-partial/.arriving/       files that are being received
DST.l40s-partial/.l40s-push.json  locked while a push writes here

A repair works in the same folder beside it, and puts each file that differs in its place by rename once it is complete.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.checkpoint.on_node.target import check_space, lock, sync_directory, target_failures
from orchestrator.node import files
from orchestrator.node.failure import Failure

PARTIAL = ".l40s-partial"
ARRIVING = ".arriving"
JOURNAL = ".l40s-push.json"
MOST_FILES = 100_000
REPAIR = "push again with --repair to send only the files that differ, or choose another name with --as"
LARGEST = 1 << 60
"""Bytes of one file."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file. path: below the target; source: below the directory that the giver offers; size: bytes"""

    path: str
    source: str
    size: int


def entries_of(listed: Any) -> tuple[FileEntry, ...]:
    """A list of [path, source, bytes] that another machine made, checked. Raises ValueError for an entry
    that does not stay below the target, or below what the giver offers."""
    if not isinstance(listed, list) or len(listed) > MOST_FILES:
        raise ValueError(f"not a list of at most {MOST_FILES} files")
    entries = tuple(_entry(item) for item in listed)
    files.refuse_clashes(entry.path for entry in entries)
    return entries


def _entry(item: Any) -> FileEntry:
    if not isinstance(item, list) or len(item) != 3:
        raise ValueError("an entry is not [path, source, bytes]")
    path, source, size = item
    if type(size) is not int or not 0 <= size <= LARGEST:
        raise ValueError(f"a file of {str(size)[:40]} bytes")
    return FileEntry(files.plain_path(path), files.plain_path(source, hidden=True), size)


class PushTarget:
    """One node's copy. entries: every file that belongs to it.

    there:  the directory is in its place already; then nothing is ever written to it, only compared
    repair: files that differ there are replaced; `repairs` once it is known that there is something to repair
    folder: where finished files are
    """

    def __init__(self, directory: Path, entries: Sequence[FileEntry], *, repair: bool = False) -> None:
        self.directory = directory
        self.entries = entries
        self.there = False
        self.repairs = False
        self.work = self.folder = directory.with_name(directory.name + PARTIAL)
        self._repair = repair
        self._lock = -1

    @property
    def arriving(self) -> Path:
        return self.work / ARRIVING

    def open(self) -> None:
        """Read what is there; lock it, remove what does not belong, check that the rest will fit.

        Raises Failure: a directory with other files is in the place, somebody writes there, no space, no rights.
        """
        with target_failures(self.directory):
            if self.directory.is_dir() and any(self.directory.iterdir()):
                if not self._repair:
                    self._take_as_it_is()
                    return
                self._refuse_another_checkpoint()
                self.folder, self.repairs = self.directory, True
            if self.directory.exists() and not self.directory.is_dir():
                raise Failure("target", "is not a directory", str(self.directory), "choose another name with --as")
            files.refuse_links(self.arriving, "")
            files.refuse_links(self.work, "")
            self.arriving.mkdir(parents=True, exist_ok=True)
            self._hold()
            self._remove_strangers()
            check_space(self.work, self._to_come(), 0)

    def _to_come(self) -> int:
        """Bytes that must arrive beside what earlier runs have left; for a repair, of files whose size differs."""
        if self.repairs:
            return sum(entry.size for entry in self.entries if files.size(self.folder / entry.path) != entry.size)
        places = [(entry, path) for entry in self.entries for path in self._places(entry)]
        here = sum(max(0, min(files.size(path), entry.size)) for entry, path in places)
        return sum(entry.size for entry in self.entries) - here

    def place(self, arrived: Path, path: str) -> os.stat_result:
        """Give an arrived file its name; what has a name is on the disk."""
        named = self.folder / path
        files.refuse_links(self.folder, path)
        with target_failures(named):
            descriptor = os.open(arrived, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:  # a hard link is another file's
                    raise Failure("outside", "the received file is not a regular file", str(arrived), files.FIX)
                os.fchmod(descriptor, 0o644)
                os.fsync(descriptor)
                named.parent.mkdir(parents=True, exist_ok=True)
                arrived.replace(named)
                return os.fstat(descriptor)
            finally:
                os.close(descriptor)

    def finish(self) -> None:
        """Give the complete directory its name; from then on a loader accepts it as a checkpoint."""
        if self.there:
            return
        with target_failures(self.directory):
            shutil.rmtree(self.arriving, ignore_errors=True)
            if self.repairs:
                shutil.rmtree(self.work, ignore_errors=True)
                self.there = True
                sync_directory(self.directory)
                return
            sync_directory(self.folder)
            self.folder.rename(self.directory)
            self.folder = self.directory
            self.there = True
            (self.directory / JOURNAL).unlink()
            sync_directory(self.directory.parent)

    def close(self) -> None:
        """Give the lock back."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _places(self, entry: FileEntry) -> tuple[Path, Path]:
        return self.folder / entry.path, self.arriving / entry.source

    def _take_as_it_is(self) -> None:
        self._refuse_another_checkpoint()
        for entry in self.entries:
            found = files.size(self.directory / entry.path)
            if found != entry.size:
                state = f"has {found} bytes there, but {entry.size} at the source" if found >= 0 else "is missing there"
                what = f"differs from the source: {entry.path} {state}"
                raise Failure("target-differs", what, str(self.directory), REPAIR)
        with contextlib.suppress(FileNotFoundError):
            (self.directory / JOURNAL).unlink()  # killed between its last two steps
        self.folder = self.directory
        self.there = True

    def _refuse_another_checkpoint(self) -> None:
        """A repair of most of a directory is none: somebody has named the wrong one."""
        alike = sum(files.size(self.directory / entry.path) == entry.size for entry in self.entries)
        if alike * 2 < len(self.entries):
            found = f"{alike} of {len(self.entries)} files have the source's size"
            what = f"another checkpoint is in this directory: {found}"
            raise Failure("target-exists", what, str(self.directory), "choose another name with --as")

    def _hold(self) -> None:
        self._lock = os.open(self.work / JOURNAL, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        lock(self._lock, self.work, "another push is writing to it")

    def _remove_strangers(self) -> None:
        """Files of an earlier push of something else; the directory's name says that it is ours."""
        kept = {str(path) for entry in self.entries for path in self._places(entry)}
        for folder, _, names in os.walk(self.work):
            for name in names:
                path = Path(folder, name)
                if str(path) not in kept and name != JOURNAL:
                    path.unlink()
