"""A directory that is not complete yet: whose it is while it grows, and how it gets its name.

A journal is in it from the first to the last byte, locked by the one run that writes. What comes from another machine
grows beside its place and is renamed once it is complete; a re-blocked checkpoint grows in its place, which may be a
file system of its own, and is complete once the journal is gone.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.protocol.errors import DeployError


@dataclass(frozen=True, slots=True)
class Unfinished:
    """place: its path when it is complete; journal: that file's name; beside: what its name ends in until then, ''
    where it grows in its place."""

    place: Path
    journal: str
    beside: str = ""

    @property
    def folder(self) -> Path:
        """Where it grows."""
        return self.place.with_name(self.place.name + self.beside)

    def take(self, writer: str) -> int:
        """Create it, with the folders above it, and lock its journal; the lock is given back by closing what is
        returned. writer: what another run that has it is called.

        Raises DeployError where another run writes to it; OSError where it can't be made.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.folder / self.journal, flags, 0o644)
        try:
            lock(descriptor, self.folder, f"another {writer} is writing to it")
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def finish(self) -> None:
        """Give it its name: its bytes and names are on the disk before that, so that a power cut leaves nothing that
        looks complete and is not. Raises OSError."""
        sync_directory(self.folder)
        if self.folder != self.place:
            self.folder.rename(self.place)
            sync_directory(self.place.parent)
        self.forget()
        sync_directory(self.place)

    def forget(self) -> None:
        """Remove the journal from its place: a run may be killed between the last two steps."""
        with suppress(FileNotFoundError):
            (self.place / self.journal).unlink()


def lock(descriptor: int, place: Path, what: str) -> None:
    """Take an open file's lock. what: is said where another process has it. A file system without locks has none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DeployError(
            what, where=str(place), fix="wait for it to finish, or stop it first", kind="lock-held"
        ) from None
    except OSError as refused:
        if refused.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            raise


def sync_directory(directory: Path) -> None:
    """Names on the disk as well; file systems that can't are taken as they are."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
