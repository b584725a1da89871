"""One re-blocked shard: where every tensor goes, and how its bytes get there.

Long runs of unchanged tensors keep their place modulo 4096, so that file systems with reflink can share their
blocks; the new scales and the short pieces stand before them and the header's spaces make up the difference.
Bytes are moved in this order: share the blocks (reflink), let the kernel copy (copy_file_range, which is also a
server-side copy on NFS 4.2), and read and write. If one fails, the next continues from the same offset.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod
from pathlib import Path

from orchestrator.checkpoint.on_node.tensors import LENGTH_BYTES, Header, Tensor, encode_header, padded
from orchestrator.node.files import opened

PAGE = 4096
"""Block size of ext4, XFS and Btrfs as they are made by default: reflink wants both offsets to be multiples."""
LONG_RUN_BYTES = 64 * 1024
"""Runs below this are moved to the front: sharing less than 16 blocks is worth no order of its own."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes that are copied as they are; offsets count from the start of each file."""

    source: int
    target: int
    length: int

    @property
    def shareable(self) -> int:
        """Bytes of it that a file system with reflink can share between the two files."""
        if (self.source - self.target) % PAGE:
            return 0
        skipped = -self.source % PAGE
        return max(0, self.length - skipped) // PAGE * PAGE


@dataclass(frozen=True, slots=True)
class NewScale:
    """A scale that is computed. source: its entry in the source shard; target: offset in the new file."""

    source: Tensor
    target: int


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """One new shard. head: its bytes before the data, padding included."""

    head: bytes
    pieces: tuple[Piece, ...]
    scales: tuple[NewScale, ...]
    size: int

    @property
    def shareable(self) -> int:
        return sum(piece.shareable for piece in self.pieces)


def lay_out(header: Header, new_shapes: Mapping[str, tuple[int, ...]]) -> ShardLayout:
    """The new shard for a source header, where the scales named in new_shapes change their shape."""
    front, runs = _split(header, new_shapes)
    if runs:
        order = [*front, *(tensor for run in runs for tensor in run)]
        placed = _place(order, new_shapes)
        text = encode_header(placed, header.metadata)
        wanted = header.data_start + order[len(front)].begin - placed[len(front)].begin
        head = padded(text, (wanted - LENGTH_BYTES - len(text)) % PAGE)
        # torch views a tensor in place only where it starts at a multiple of its element's size
        if all((len(head) + tensor.begin) % tensor.element_bytes == 0 for tensor in placed):
            return _layout(header, order, placed, head, new_shapes)
    order = _widest_first(header.tensors)
    placed = _place(order, new_shapes)
    text = encode_header(placed, header.metadata)
    return _layout(header, order, placed, padded(text, -len(text) % LENGTH_BYTES), new_shapes)


def _split(header: Header, new_shapes: Mapping[str, object]) -> tuple[list[Tensor], list[list[Tensor]]]:
    """What goes to the front, and the long runs of unchanged tensors in the order that shares most."""
    runs = [list(run) for changed, run in groupby(header.tensors, lambda t: t.name in new_shapes) if not changed]
    long = [run for run in runs if _nbytes(run) >= LONG_RUN_BYTES]
    kept = {tensor.name for run in long for tensor in run}
    front = _widest_first(tensor for tensor in header.tensors if tensor.name not in kept)
    by_phase: dict[int, list[list[Tensor]]] = {}
    for run in long:
        by_phase.setdefault((header.data_start + run[0].begin) % PAGE, []).append(run)
    phases = sorted(by_phase.values(), key=lambda group: -sum(map(_nbytes, group)))
    return front, [run for group in phases for run in sorted(group, key=lambda run: _nbytes(run) % PAGE != 0)]


def _widest_first(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The order that safetensors itself writes: it aligns every tensor to its element."""
    return sorted(tensors, key=lambda tensor: -tensor.element_bytes)


def _nbytes(run: Sequence[Tensor]) -> int:
    return run[-1].end - run[0].begin


def _place(order: Sequence[Tensor], new_shapes: Mapping[str, tuple[int, ...]]) -> list[Tensor]:
    placed = []
    at = 0
    for tensor in order:
        shape = new_shapes.get(tensor.name, tensor.shape)
        size = prod(shape) * tensor.element_bytes if tensor.name in new_shapes else tensor.nbytes
        placed.append(replace(tensor, shape=shape, begin=at, end=at + size))
        at += size
    return placed


def _layout(
    header: Header, order: Sequence[Tensor], placed: Sequence[Tensor], head: bytes, changed: Mapping[str, object]
) -> ShardLayout:
    pieces: list[Piece] = []
    scales = []
    for old, new in zip(order, placed, strict=True):
        target = len(head) + new.begin
        if old.name in changed:
            scales.append(NewScale(old, target))
        else:
            _append(pieces, Piece(header.data_start + old.begin, target, old.nbytes))
    size = len(head) + (placed[-1].end if placed else 0)
    return ShardLayout(head, tuple(pieces), tuple(scales), size)


def _append(pieces: list[Piece], piece: Piece) -> None:
    """Add a piece, as part of the one before where both sides are contiguous."""
    if pieces:
        last = pieces[-1]
        if last.source + last.length == piece.source and last.target + last.length == piece.target:
            pieces[-1] = Piece(last.source, last.target, last.length + piece.length)
            return
    if piece.length:
        pieces.append(piece)


FICLONERANGE = 0x4020940D
"""_IOW(0x94, 13, struct file_clone_range) of linux/fs.h."""
STEP_BYTES = 32 * 1024 * 1024
"""One call's most: often enough to show progress and to stop, seldom enough to cost nothing."""
_BUFFER_BYTES = 1024 * 1024
_NOT_THIS_WAY = frozenset(
    (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY, errno.EPERM, errno.EBADF, errno.ETXTBSY)
)
"""What kernels and file systems answer where they do not offer a call; EPERM is seccomp's."""

Moved = Callable[[str, int], None]


class SourceUnreadable(OSError):
    """It is the source that can't be read, whatever call said so."""


class Carrier:
    """Copies between one pair of open files; remembers which methods the file systems refused.

    share: whether to try reflink. moved: told the bytes that were 'copied' or 'shared', and which.
    """

    def __init__(self, source: int, target: int, *, share: bool, moved: Moved) -> None:
        self._source = source
        self._target = target
        self._share = share
        self._moved = moved
        self._by_kernel = True

    def carry(self, piece: Piece) -> None:
        """Copy one piece. Raises OSError for the target: ENOSPC, EIO; SourceUnreadable for the source, its end too."""
        shareable = piece.shareable if self._share else 0
        done = -piece.source % PAGE if shareable else piece.length
        self._copy(piece.source, piece.target, done)
        if shareable:
            self._share = clone(self._source, piece.source + done, self._target, piece.target + done, shareable)
            if self._share:
                self._moved("shared", shareable)
                done += shareable
            self._copy(piece.source + done, piece.target + done, piece.length - done)

    def _copy(self, source: int, target: int, length: int) -> None:
        while length > 0:
            step = self._step(source, target, min(length, STEP_BYTES))
            source, target, length = source + step, target + step, length - step
            self._moved("copied", step)

    def _step(self, source: int, target: int, length: int) -> int:
        if self._by_kernel:
            try:
                if step := os.copy_file_range(self._source, self._target, length, source, target):
                    return step
            except OSError as refused:
                if refused.errno not in _NOT_THIS_WAY:
                    for at in range(0, length, _BUFFER_BYTES):  # it does not say whose error it met
                        read_source(self._source, min(_BUFFER_BYTES, length - at), source + at)
                    raise
            self._by_kernel = False
        data = read_source(self._source, min(length, _BUFFER_BYTES), source)
        write_at(self._target, data, target)
        return len(data)


def clone(source: int, source_at: int, target: int, target_at: int, length: int) -> bool:
    """Share blocks between two open files; False where the file systems don't."""
    try:
        fcntl.ioctl(target, FICLONERANGE, struct.pack("=qQQQ", source, source_at, length, target_at))
    except OSError as refused:
        if refused.errno in _NOT_THIS_WAY:
            return False
        raise
    return True


def can_share(source: int, directory: Path) -> bool:
    """Whether a block of an open source file can be shared with a file in a directory: known by trying."""
    if os.fstat(source).st_size < PAGE:
        return False
    probe = directory / f".l40s-share-{os.getpid()}.part"
    probe_fd = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        return clone(source, 0, probe_fd, 0, PAGE)
    finally:
        os.close(probe_fd)
        with suppress(OSError):
            probe.unlink()


def open_source(path: Path) -> int:
    """A descriptor to read from. Raises SourceUnreadable."""
    try:
        return opened(path)
    except OSError as wrong:
        raise SourceUnreadable(wrong.errno, wrong.strerror) from None


def read_source(source: int, length: int, offset: int) -> bytes:
    """Some bytes at an offset, at most so many. Raises SourceUnreadable, also at the end."""
    try:
        data = os.pread(source, length, offset)
    except OSError as wrong:
        raise SourceUnreadable(wrong.errno, wrong.strerror) from None
    if not data:
        raise SourceUnreadable(errno.EIO, "it is shorter than its header states")
    return data


def write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of it at an offset."""
    view = memoryview(data)
    while view:
        step = os.pwrite(descriptor, view, offset)
        view, offset = view[step:], offset + step
