"""What a machine runs out of, or bars, by the number of the error: one list for the controller and for nodes."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from enum import Enum


class Lack(str, Enum):
    """value: an error's kind. SPACE is of bytes or inodes, which the number does not tell apart"""

    SPACE = "no-space"
    READ_ONLY = "read-only"
    DESCRIPTORS = "no-descriptors"
    PROCESSES = "no-processes"
    MEMORY = "no-memory"
    RIGHTS = "unreadable"
    FILE = "io"


NUMBERS: Mapping[Lack, tuple[int, ...]] = {
    Lack.SPACE: (errno.ENOSPC, errno.EDQUOT),
    Lack.READ_ONLY: (errno.EROFS,),
    Lack.DESCRIPTORS: (errno.EMFILE, errno.ENFILE),
    Lack.PROCESSES: (errno.EAGAIN,),
    Lack.MEMORY: (errno.ENOMEM,),
    Lack.RIGHTS: (errno.EACCES, errno.EPERM),
    Lack.FILE: (
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
}
"""errno(3). EAGAIN is fork's and clone's: what reads without waiting looks at it itself."""
NO_THREAD = "can't start new thread"
"""What Python says, in a RuntimeError, where the kernel has no thread to give (Modules/_threadmodule.c)."""
OF = {number: lack for lack, numbers in NUMBERS.items() for number in numbers}
