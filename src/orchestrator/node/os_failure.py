"""What the operating system refuses, as a failure that says what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.node.failure import Failure


def os_failure(wrong: OSError, where: str) -> Failure:
    """The failure for an error nobody nearer knew words for. where: what was worked on, if the error names no file."""
    place = str(wrong.filename or where)
    words = wrong.strerror or str(wrong) or type(wrong).__name__
    if wrong.errno in (errno.ENOSPC, errno.EDQUOT):
        fix = "free space and run the same command again: it goes on where it stopped"
        return Failure("no-space", f"the disk is full: {words}", place, fix)
    if wrong.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Failure("unreadable", words, place, "see its owner and mode, and those of the directories above it")
    fix = "see the kernel's log for the disk, then run the same command again: it goes on where it stopped"
    return Failure("io", words, place, fix)


@contextmanager
def os_told(where: str) -> Iterator[None]:
    """Raise Failure for an OSError; a reader that went away stays what it is."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as wrong:
        raise os_failure(wrong, where) from None
