"""FP8 block quantisation: which scale belongs to which weight, and what a finer block makes of a scale.

A weight of shape (..., n, k) with block (bn, bk) has a scale of shape (..., ceil(n/bn), ceil(k/bk)); element
(i, j) is worth weight[i, j] * scale[i // bn, j // bk]. For a block that divides the old one, repeating each scale and
cropping to the new ceil() leaves that product the same for every element, and the weight's bytes untouched.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from orchestrator.checkpoint.on_node.header import Tensor

SCALE_SUFFIX = "_scale_inv"
FP8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
"""Unsigned integers of a scale's width: bits are moved, never computed with."""

Block = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Misfit:
    """A tensor that block quantisation does not explain. id: SCALE-MISSING, SCALE-ORPHAN or SCALE-SHAPE."""

    id: str
    tensor: str
    what: str


def is_scale(name: str) -> bool:
    """Whether a tensor's name says that it holds the scales of another one."""
    return name.endswith(SCALE_SUFFIX)


def weight_of(scale: str) -> str:
    """Name of the weight that a scale belongs to."""
    return scale.removesuffix(SCALE_SUFFIX)


def scale_shape(weight: tuple[int, ...], block: Block) -> tuple[int, ...]:
    """Shape of the scales of a weight: its last two dimensions counted in blocks, rounded up."""
    return (*weight[:-2], -(-weight[-2] // block[0]), -(-weight[-1] // block[1]))


def misfits(tensors: Mapping[str, Tensor], block: Block) -> list[Misfit]:
    """Every FP8 weight without scales, scale without weight, and scale whose shape is not the block's."""
    found = []
    for name, tensor in tensors.items():
        if is_scale(name):
            found += _misfit_of_scale(tensor, tensors.get(weight_of(name)), block)
        elif tensor.dtype in FP8 and len(tensor.shape) >= 2 and name + SCALE_SUFFIX not in tensors:
            found.append(Misfit("SCALE-MISSING", name, f"{tensor.dtype} weight has no {name + SCALE_SUFFIX}"))
    return found


def _misfit_of_scale(scale: Tensor, weight: Tensor | None, block: Block) -> list[Misfit]:
    if weight is None:
        return [Misfit("SCALE-ORPHAN", scale.name, f"no shard contains its weight {weight_of(scale.name)}")]
    if weight.dtype not in FP8 or len(weight.shape) < 2:
        shape = list(weight.shape)
        return [Misfit("SCALE-ORPHAN", scale.name, f"its weight is {weight.dtype} {shape}, not an FP8 matrix")]
    wanted = scale_shape(weight.shape, block)
    if scale.shape != wanted or scale.element_bytes not in _CODES:
        what = (
            f"{scale.dtype} {list(scale.shape)}, but its weight {list(weight.shape)} in blocks of "
            f"{block[0]}x{block[1]} has {list(wanted)}"
        )
        return [Misfit("SCALE-SHAPE", scale.name, what)]
    return []


def finer(scales: bytes, weight: tuple[int, ...], width: int, old: Block, new: Block) -> bytes:
    """The scales of the same weight for a finer block.

    scales: row-major elements of `width` bytes, of shape scale_shape(weight, old). new divides old.
    """
    rows, columns = scale_shape(weight, old)[-2:]
    new_rows, new_columns = scale_shape(weight, new)[-2:]
    down, across = old[0] // new[0], old[1] // new[1]
    source = array(_CODES[width], scales)
    pieces = []
    for matrix in range(prod(weight[:-2])):
        start = matrix * rows * columns
        for row in range(rows):
            wide = _repeated(source[start + row * columns : start + (row + 1) * columns], across)
            times = min(down, new_rows - row * down)
            pieces.append(wide[:new_columns].tobytes() * times)
    return b"".join(pieces)


def _repeated(row: array[int], times: int) -> array[int]:
    wide = array(row.typecode, bytes(len(row) * times * row.itemsize))
    for shift in range(times):
        wide[shift::times] = row
    return wide
