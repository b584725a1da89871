"""What this machine lacks or bars, in words: files that can't be used; threads, descriptors and memory that run out.

An operator's machine is theirs: such an error is no defect of ours, wherever in the program it comes up.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from orchestrator.model.errors import InputError

HERE = "this machine"


@dataclass(frozen=True, slots=True)
class KnownLack:
    """{path}: of the file in question. fix: a command where one exists"""

    what: str
    fix: str


_FILE = KnownLack("can't be used: {words}", "see what it is: ls -ld {path}")
_FULL = KnownLack("can't be written: {words}", "free space or quota: df -h {path}; df -i {path}")
_RIGHTS = KnownLack(
    "can't be used: {words}", "see whose it is with `ls -ld {path}`, and change its owner or its mode, or name another"
)
_DESCRIPTORS = KnownLack(
    "no file can be opened: {words}", "raise the limit (ulimit -n 4096), or end programs that hold many files open"
)
_PROCESSES = KnownLack(
    "no more threads or processes can be started", "raise the limit (ulimit -u; systemd's TasksMax), or end programs"
)
_MEMORY = KnownLack("the memory is used up", "end programs that use much of it: ps aux --sort=-rss | head")
BY_ERRNO = {
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: KnownLack("can't be written: {words}", "name a place that can be written, or mount it read-write"),
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EMFILE: _DESCRIPTORS,
    errno.ENFILE: _DESCRIPTORS,
    errno.EAGAIN: _PROCESSES,
    errno.ENOMEM: _MEMORY,
    **dict.fromkeys(
        (
            errno.ENOENT,
            errno.ENOTDIR,
            errno.EISDIR,
            errno.EEXIST,
            errno.ELOOP,
            errno.ENAMETOOLONG,
            errno.EINVAL,
            errno.ENXIO,
            errno.EIO,
            errno.ESTALE,
            errno.ENODEV,
            errno.ENOTSUP,
            errno.ETXTBSY,
        ),
        _FILE,
    ),
}
_NO_FILE_NEEDED = (_DESCRIPTORS, _PROCESSES, _MEMORY, _FULL)


def lack_of(error: BaseException) -> InputError | None:
    """The error in words; None for one that says nothing about this machine."""
    if isinstance(error, MemoryError):
        return InputError(_MEMORY.what, where=HERE, fix=_MEMORY.fix)
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return InputError(_PROCESSES.what, where=HERE, fix=_PROCESSES.fix)
    if isinstance(error, FileNotFoundError) and "usable temporary directory" in str(error):
        return InputError(f"{error.strerror}", where=HERE, fix="free space there, or name another place in $TMPDIR")
    if not isinstance(error, OSError) or (known := BY_ERRNO.get(error.errno or 0)) is None:
        return None
    path = "" if error.filename is None else _text(error.filename)
    if not path and known not in _NO_FILE_NEEDED:
        return None
    words = error.strerror or str(error)
    return InputError(
        known.what.format(words=words), where=path or HERE, fix=known.fix.format(path=path or ".", words=words)
    )


def _text(name: object) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
