"""Copies byte ranges from one file to another by the cheapest method that kernel and file system offer.

In this order: share the blocks (reflink), let the kernel copy (copy_file_range, which is also a server-side copy
on NFS 4.2), sendfile, and read and write. If one fails, the next continues from the same offset.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from orchestrator.checkpoint.on_node.shard_layout import PAGE, Piece
from orchestrator.node.files import opened

FICLONERANGE = 0x4020940D
"""_IOW(0x94, 13, struct file_clone_range) of linux/fs.h."""
STEP_BYTES = 32 * 1024 * 1024
"""One call's most: often enough to show progress and to stop, seldom enough to cost nothing."""
_BUFFER_BYTES = 1024 * 1024
_NOT_THIS_WAY = frozenset(
    (
        errno.EXDEV,
        errno.ENOSYS,
        errno.EINVAL,
        errno.EOPNOTSUPP,
        errno.ENOTTY,
        errno.EPERM,
        errno.EBADF,
        errno.ETXTBSY,
    )
)
"""What kernels and file systems answer where they do not offer a call; EPERM is seccomp's."""

Moved = Callable[[int], None]


class SourceUnreadable(OSError):
    """It is the source that can't be read, whatever call said so."""


class Carrier:
    """Copies between one pair of open files; remembers which methods the file systems refused.

    share: whether to try reflink. copied: told the bytes that were copied; shared: those that were shared.
    """

    def __init__(self, source: int, target: int, *, share: bool, copied: Moved, shared: Moved) -> None:
        self._source = source
        self._target = target
        self._share = share
        self._copied = copied
        self._shared = shared
        self._ways = [_copy_file_range, _sendfile, _read_write]

    def carry(self, piece: Piece) -> None:
        """Copy one piece. Raises OSError for the target: ENOSPC, EIO; SourceUnreadable for the source, its end too."""
        shareable = piece.shareable if self._share else 0
        before = -piece.source % PAGE if shareable else piece.length
        self._copy(piece.source, piece.target, before)
        if shareable:
            self._share_or_copy(piece.source + before, piece.target + before, shareable)
            done = before + shareable
            self._copy(piece.source + done, piece.target + done, piece.length - done)

    def _share_or_copy(self, source: int, target: int, length: int) -> None:
        if self._share and clone(self._source, source, self._target, target, length):
            self._shared(length)
            return
        self._share = False
        self._copy(source, target, length)

    def _copy(self, source: int, target: int, length: int) -> None:
        while length > 0:
            step = self._step(source, target, min(length, STEP_BYTES))
            source, target, length = source + step, target + step, length - step
            self._copied(step)

    def _step(self, source: int, target: int, length: int) -> int:
        while True:
            way = self._ways[0]
            try:
                step = way(self._source, source, self._target, target, length)
            except OSError as refused:
                if refused.errno not in _NOT_THIS_WAY or len(self._ways) == 1:
                    read_source(self._source, min(length, STEP_BYTES), source)
                    raise
                step = 0
            if step:
                return step
            if len(self._ways) == 1:
                raise SourceUnreadable(errno.EIO, "it is shorter than its header states")
            self._ways.pop(0)


def clone(source: int, source_at: int, target: int, target_at: int, length: int) -> bool:
    """Share blocks between two open files; False where the file systems don't."""
    try:
        fcntl.ioctl(target, FICLONERANGE, struct.pack("=qQQQ", source, source_at, length, target_at))
    except OSError as refused:
        if refused.errno in _NOT_THIS_WAY:
            return False
        raise
    return True


def can_share(source: Path, directory: Path) -> bool:
    """Whether a block of a source file can be shared with a file in a directory: known by trying."""
    probe = directory / f".l40s-share-{os.getpid()}.part"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    source_fd = open_source(source)
    try:
        if os.fstat(source_fd).st_size < PAGE:
            return False
        probe_fd = os.open(probe, flags, 0o600)
        try:
            return clone(source_fd, 0, probe_fd, 0, PAGE)
        finally:
            os.close(probe_fd)
            with suppress(OSError):
                probe.unlink()
    finally:
        os.close(source_fd)


def open_source(path: Path) -> int:
    """A descriptor to read from. Raises SourceUnreadable."""
    try:
        return opened(path)
    except OSError as wrong:
        raise SourceUnreadable(wrong.errno, wrong.strerror) from None


def read_source(source: int, length: int, offset: int) -> None:
    """Read and discard: a call that moves bytes between two files does not say whose error it met.

    Raises SourceUnreadable.
    """
    while length > 0:
        try:
            part = os.pread(source, min(length, _BUFFER_BYTES), offset)
        except OSError as wrong:
            raise SourceUnreadable(wrong.errno, wrong.strerror) from None
        if not part:
            raise SourceUnreadable(errno.EIO, "it is shorter than its header states")
        length, offset = length - len(part), offset + len(part)


def write_at(descriptor: int, data: bytes, offset: int) -> None:
    """Write all of it at an offset."""
    view = memoryview(data)
    while view:
        step = os.pwrite(descriptor, view, offset)
        view, offset = view[step:], offset + step


def _copy_file_range(source: int, source_at: int, target: int, target_at: int, length: int) -> int:
    return os.copy_file_range(source, target, length, source_at, target_at)


def _sendfile(source: int, source_at: int, target: int, target_at: int, length: int) -> int:
    os.lseek(target, target_at, os.SEEK_SET)
    return os.sendfile(target, source, source_at, length)


def _read_write(source: int, source_at: int, target: int, target_at: int, length: int) -> int:
    data = os.pread(source, min(length, _BUFFER_BYTES), source_at)
    write_at(target, data, target_at)
    return len(data)
