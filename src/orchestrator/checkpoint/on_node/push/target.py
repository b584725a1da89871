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
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.checkpoint.on_node.target import check_space, target_failures
from orchestrator.checkpoint.on_node.unfinished import Unfinished, sync_directory
from orchestrator.node import files
from orchestrator.protocol.errors import DeployError

PARTIAL = ".l40s-partial"
ARRIVING = ".arriving"
JOURNAL = ".l40s-push.json"
MOST_FILES = 100_000
REPAIR = "push again with --repair to send only the files that differ, or choose another name with --as"
LARGEST = 1 << 60
"""Bytes of one file."""


def checked(sizes: Mapping[str, int]) -> Mapping[str, int]:
    """A list of files and their sizes in bytes that another machine made. Raises ValueError for one that does not stay
    below the target, or can't be a file's."""
    if len(sizes) > MOST_FILES:
        raise ValueError(f"it has more than {MOST_FILES} files")
    for path, size in sizes.items():
        files.plain_path(path)
        if not 0 <= size <= LARGEST:
            raise ValueError(f"a file of {size} bytes")
    files.refuse_clashes(sizes)
    return sizes


class PushTarget:
    """One node's copy. entries: size in bytes of every file that belongs to it, by path.

    there:  the directory is in its place already; then nothing is ever written to it, only compared
    repair: files that differ there are replaced; `repairs` once it is known that there is something to repair
    folder: where finished files are
    """

    def __init__(self, directory: Path, entries: Mapping[str, int], *, repair: bool = False) -> None:
        self.directory = directory
        self.entries = entries
        self.there = False
        self.repairs = False
        self._unfinished = Unfinished(directory, JOURNAL, beside=PARTIAL)
        self.folder = self._work = self._unfinished.folder
        self._arriving = self._work / ARRIVING
        self._repair = repair

    def open(self) -> int | None:
        """Read what is there; lock it, remove what does not belong, check that the rest will fit.

        Returns the lock, which is given back by closing it; None where nothing will be written.
        Raises DeployError: a directory with other files is in the place, somebody writes there, no space, no rights.
        """
        with target_failures(self.directory):
            if self.directory.is_dir() and any(self.directory.iterdir()):
                if not self._repair:
                    self._take_as_it_is()
                    return None
                self._refuse_another_checkpoint()
                self.folder, self.repairs = self.directory, True
            if self.directory.exists() and not self.directory.is_dir():
                raise DeployError(
                    "is not a directory", where=str(self.directory), fix="choose another name with --as", kind="target"
                )
            files.refuse_links(self._arriving, "")
            files.refuse_links(self._work, "")
            journal = self._unfinished.take("push")
            self._arriving.mkdir(exist_ok=True)
            self._remove_strangers()
            check_space(self._work, self._to_come(), 0)
            return journal

    def _to_come(self) -> int:
        """Bytes that must arrive beside what earlier runs have left; for a repair, of files whose size differs."""
        if self.repairs:
            return sum(size for path, size in self.entries.items() if files.size(self.folder / path) != size)
        places = [(path, size) for name, size in self.entries.items() for path in self._places(name)]
        return sum(self.entries.values()) - sum(max(0, min(files.size(path), size)) for path, size in places)

    @contextlib.contextmanager
    def arriving(self, path: str) -> Iterator[int]:
        """A descriptor of a file as far as it has come; what is longer than it should be begins again."""
        place = self._arriving / path
        files.refuse_links(self._arriving, path)
        with target_failures(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:  # a hard link is another file's
                    raise DeployError(
                        "what has arrived is not a regular file", where=str(place), fix=files.FIX, kind="outside"
                    )
                if status.st_size > self.entries[path]:
                    os.ftruncate(descriptor, 0)
                yield descriptor
            finally:
                os.close(descriptor)

    def place(self, arrived: int, path: str) -> os.stat_result:
        """Give an arrived file its name; what has a name is on the disk."""
        named = self.folder / path
        files.refuse_links(self.folder, path)
        os.fchmod(arrived, 0o644)  # the rsync of an earlier release began them as 0600
        os.fsync(arrived)
        named.parent.mkdir(parents=True, exist_ok=True)
        (self._arriving / path).replace(named)
        return os.fstat(arrived)

    def finish(self) -> None:
        """Give the complete directory its name; from then on a loader accepts it as a checkpoint."""
        if self.there:
            return
        with target_failures(self.directory):
            shutil.rmtree(self._arriving, ignore_errors=True)
            if self.repairs:
                shutil.rmtree(self._work, ignore_errors=True)
                self.there = True
                sync_directory(self.directory)
                return
            self._unfinished.finish()
            self.folder = self.directory
            self.there = True

    def _places(self, path: str) -> tuple[Path, Path]:
        return self.folder / path, self._arriving / path

    def _take_as_it_is(self) -> None:
        self._refuse_another_checkpoint()
        for path, size in self.entries.items():
            if (held := files.size(self.directory / path)) != size:
                state = f"has {held} bytes there, but {size} at the source" if held >= 0 else "is missing there"
                raise DeployError(
                    f"differs from the source: {path} {state}",
                    where=str(self.directory),
                    fix=REPAIR,
                    kind="target-differs",
                )
        self._unfinished.forget()
        self.folder = self.directory
        self.there = True

    def _refuse_another_checkpoint(self) -> None:
        """A repair of most of a directory is none: somebody has named the wrong one."""
        alike = sum(files.size(self.directory / path) == size for path, size in self.entries.items())
        if alike * 2 < len(self.entries):
            what_is_there = f"{alike} of {len(self.entries)} files have the source's size"
            what = f"another checkpoint is in this directory: {what_is_there}"
            raise DeployError(
                what, where=str(self.directory), fix="choose another name with --as", kind="target-exists"
            )

    def _remove_strangers(self) -> None:
        """Files of an earlier push of something else; the directory's name says that it is ours."""
        kept = {str(place) for path in self.entries for place in self._places(path)}
        for folder, _, names in os.walk(self._work):
            for name in names:
                path = Path(folder, name)
                if str(path) not in kept and name != JOURNAL:
                    path.unlink()
