"""An operating system's error as a failure in words: what was refused, where, and what is left on its file system."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.lacks import NO_THREAD, NUMBERS, OF, Lack

FULL = NUMBERS[Lack.SPACE]
DENIED = NUMBERS[Lack.RIGHTS]
NO_DESCRIPTORS = NUMBERS[Lack.DESCRIPTORS]
NO_ROOM_KINDS = (Lack.SPACE.value, Lack.READ_ONLY.value)
"""Of a failure to write that says nothing about whose the files are."""


def failure_of(wrong: Exception, where: str, verb: str) -> DeployError:
    """What a thread of a verb has died of. where: as for os_failure."""
    if isinstance(wrong, DeployError):
        return wrong
    if (lack := used_up(wrong, where)) is not None:
        return lack
    if isinstance(wrong, OSError):
        return os_failure(wrong, where)
    return DeployError(f"{type(wrong).__name__}: {wrong}", where=verb, fix="report this", kind="defect")


def os_failure(wrong: OSError, where: str) -> DeployError:
    """The failure for an error without a better message. where: what was worked on, if the error names no file."""
    place = str(wrong.filename or where)
    words = wrong.strerror or str(wrong) or type(wrong).__name__
    if (failure := no_room(wrong, place)) is not None:
        return failure
    if wrong.errno in DENIED:
        return DeployError(
            words, where=place, fix="check its owner and mode, and those of the directories above it", kind="unreadable"
        )
    fix = "check the disk (`dmesg`), then run the same command again; it resumes where it stopped"
    return DeployError(words, where=place, fix=fix, kind="io")


def used_up(wrong: Exception, where: str) -> DeployError | None:
    """The failure for what this machine had not to give, in whichever way Python says so; else None. where: as for
    os_failure"""
    if isinstance(wrong, MemoryError):
        wrong = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    elif isinstance(wrong, RuntimeError) and NO_THREAD in str(wrong):
        wrong = OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return no_room(wrong, str(wrong.filename or where)) if isinstance(wrong, OSError) else None


def errno_name(wrong: OSError) -> str:
    """As messages have it: `ETIMEDOUT`; EIO for an error without a number."""
    return errno.errorcode.get(wrong.errno or 0, "EIO")


def no_room(wrong: OSError, where: str) -> DeployError | None:
    """The failure for a file system that takes nothing more, a process that opens nothing more, or a machine that has
    no memory, thread or process to give; else None.

    where: what was written, which need not exist: the folder that does is shown
    """
    words, folder = wrong.strerror or str(wrong), shlex.quote(existing_folder(where))
    again = "then run the same command again; it resumes where it stopped"
    if wrong.errno in FULL and is_without_inodes(where):
        fix = f"remove files that are not needed (`df -i {folder}`), {again}"
        return DeployError(f"no inode is left on its file system: {words}", where=where, fix=fix, kind="no-space")
    if wrong.errno in FULL:
        return DeployError(
            f"the disk is full: {words}", where=where, fix=f"free space (`df -h {folder}`), {again}", kind="no-space"
        )
    if wrong.errno == errno.EROFS:
        fix = f"see why (`dmesg`), and mount it read-write: sudo mount -o remount,rw $(findmnt -no TARGET -T {folder})"
        return DeployError(
            f"its file system is mounted read-only: {words}", where=where, fix=f"{fix}; {again}", kind="read-only"
        )
    if wrong.errno in NO_DESCRIPTORS:
        fix = f"raise the limit of that user (ulimit -n, LimitNOFILE), or end programs that hold files open, {again}"
        return DeployError(f"no more files can be opened: {words}", where=where, fix=fix, kind="no-descriptors")
    return _no_more_of_the_machine(wrong, where, words, again)


def _no_more_of_the_machine(wrong: OSError, where: str, words: str, again: str) -> DeployError | None:
    lack = OF.get(wrong.errno or 0)
    if lack is Lack.PROCESSES:
        fix = f"raise the limit of that user (ulimit -u, systemd's TasksMax), or end programs, {again}"
        return DeployError(
            f"no more threads or processes can be started: {words}", where=where, fix=fix, kind=lack.value
        )
    if lack is Lack.MEMORY:
        fix = f"end programs that use much of it (`ps aux --sort=-rss | head`), {again}"
        return DeployError(f"the memory is used up: {words}", where=where, fix=fix, kind=lack.value)
    return None


@contextmanager
def os_failures(where: str) -> Iterator[None]:
    """Raise DeployError for an OSError; a reader that went away stays what it is."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as wrong:
        raise os_failure(wrong, where) from None


def existing_folder(path: str) -> str:
    """The nearest folder of a path that is there."""
    folder = os.path.abspath(path)
    while folder != "/" and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def is_without_inodes(where: str) -> bool:
    """Some file systems count none (statvfs(3): 0 files)."""
    try:
        room = os.statvfs(existing_folder(where))
    except OSError:
        return False
    return room.f_files > 0 and room.f_favail == 0 and room.f_bavail > 0
