"""Where every tensor of a re-blocked shard goes: pure arithmetic over the source's header.

Long runs of unchanged tensors keep their place modulo 4096, so that file systems with reflink can share their
blocks; the new scales and the short pieces stand before them and the header's spaces make up the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod

from orchestrator.checkpoint.on_node.header import LENGTH_BYTES, Header, Tensor, encode_header, padded

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
        if _aligned(placed, len(head)):
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


def _aligned(placed: Iterable[Tensor], data_start: int) -> bool:
    """Torch views a tensor in place only where it starts at a multiple of its element's size."""
    return all((data_start + tensor.begin) % tensor.element_bytes == 0 for tensor in placed)


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
