"""A failure on the node, as the controller shows it to its operator; an operating system's error as one."""

from __future__ import annotations

import errno
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

FULL = (errno.ENOSPC, errno.EDQUOT)
DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


class Failure(Exception):
    """Something that the node found and that stops its work.

    kind:  a word for programs, for example port-taken, gpu-busy, no-model, bad-request
    what:  what was found, and what is wanted
    where: file, port or device on this node; the controller puts the node's name before it
    fix:   what to do about it, '' if unknown
    """

    def __init__(self, kind: str, what: str, where: str, fix: str = "") -> None:
        super().__init__(what)
        self.kind, self.what, self.where, self.fix = kind, what, where, fix

    def as_json(self) -> dict[str, str]:
        """The `error` object of an answer."""
        return {"kind": self.kind, "what": self.what, "where": self.where, "fix": self.fix}


def failure_of(wrong: Exception, where: str, verb: str) -> Failure:
    """What a thread of a verb has died of. where: as for os_failure."""
    if isinstance(wrong, Failure):
        return wrong
    if isinstance(wrong, OSError):
        return os_failure(wrong, where)
    return Failure("defect", f"{type(wrong).__name__}: {wrong}", verb, "report this")


def os_failure(wrong: OSError, where: str) -> Failure:
    """The failure for an error without a better message. where: what was worked on, if the error names no file."""
    place = str(wrong.filename or where)
    words = wrong.strerror or str(wrong) or type(wrong).__name__
    if wrong.errno in FULL:
        return disk_full(words, place)
    if wrong.errno in DENIED:
        return Failure("unreadable", words, place, "check its owner and mode, and those of the directories above it")
    fix = "check the disk (`dmesg`), then run the same command again; it resumes where it stopped"
    return Failure("io", words, place, fix)


def errno_name(wrong: OSError) -> str:
    """As messages have it: `ETIMEDOUT`; EIO for an error without a number."""
    return errno.errorcode.get(wrong.errno or 0, "EIO")


def disk_full(words: str, where: str) -> Failure:
    """words: the operating system's own."""
    fix = f"free space (`df -h {shlex.quote(where)}`), then run the same command again; it resumes where it stopped"
    return Failure("no-space", f"the disk is full: {words}", where, fix)


@contextmanager
def os_failures(where: str) -> Iterator[None]:
    """Raise Failure for an OSError; a reader that went away stays what it is."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as wrong:
        raise os_failure(wrong, where) from None
