"""Tensors of a safetensors file: its header, read as strictly as the official library does, and FP8 block quantisation.

Layout of a file (safetensors README, "Format"): 8 bytes little-endian length N, N bytes of JSON that may end in
spaces, then the data. Offsets in the JSON count from the end of the header; data has no holes and no overlaps.

A weight of shape (..., n, k) with block (bn, bk) has a scale of shape (..., ceil(n/bn), ceil(k/bk)); element
(i, j) is worth weight[i, j] * scale[i // bn, j // bk]. For a block that divides the old one, repeating each scale and
cropping to the new ceil() leaves that product the same for every element, and the weight's bytes untouched.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from orchestrator.protocol.jobs import CheckpointFinding
from orchestrator.protocol.severity import Severity

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""safetensors src/tensor.rs MAX_HEADER_SIZE."""

BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""Bits of one element by dtype (safetensors src/tensor.rs, Dtype::bitsize)."""


_SHAPES: dict[tuple[int, ...], tuple[int, ...]] = {}
"""Every shape once: a checkpoint has 100,000 tensors of two dozen shapes."""


class HeaderError(ValueError):
    """The bytes are no safetensors header that the official library would take; the message says why."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry. begin and end are bytes, counted from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin

    @property
    def element_bytes(self) -> int:
        """Bytes of one element; 1 for the types that are smaller than a byte."""
        return max(1, BITS[self.dtype] // 8)


@dataclass(frozen=True, slots=True)
class Header:
    """All entries in the order of their data, and where the data starts in the file."""

    tensors: tuple[Tensor, ...]
    metadata: Mapping[str, str] | None
    data_start: int

    @property
    def file_size(self) -> int:
        """Size in bytes of a complete file with this header."""
        return self.data_start + (self.tensors[-1].end if self.tensors else 0)


def header_length(prefix: bytes) -> int:
    """Length of the JSON as the file's first 8 bytes say it. Raises HeaderError where no library would go on."""
    if len(prefix) < LENGTH_BYTES:
        raise HeaderError(f"the file ends after {len(prefix)} bytes, but a header starts with {LENGTH_BYTES}")
    if (length := int.from_bytes(prefix[:LENGTH_BYTES], "little")) > MAX_HEADER_BYTES:
        raise HeaderError(f"header length {length} is over the format's limit of {MAX_HEADER_BYTES}")
    return length


def parse_header(text: bytes) -> Header:
    """The header's JSON, checked entry by entry. Raises HeaderError."""
    if not text.startswith(b"{"):
        raise HeaderError("the header does not start with '{'")
    body = text.rstrip(b" ")
    if not body.endswith(b"}"):
        raise HeaderError("the header does not end with '}' and spaces")
    try:
        raw = json.loads(body.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as wrong:
        raise HeaderError(f"the header is not JSON: {wrong}") from None
    metadata = _metadata(raw.pop("__metadata__", None))
    tensors = sorted((_tensor(name, entry) for name, entry in raw.items()), key=lambda t: (t.begin, t.end))
    _check_no_holes(tensors)
    return Header(tuple(tensors), metadata, LENGTH_BYTES + len(text))


def encode_header(tensors: Iterable[Tensor], metadata: Mapping[str, str] | None) -> bytes:
    """The header's JSON without its padding, entries in the order given."""
    document: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    for tensor in tensors:
        document[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [tensor.begin, tensor.end],
        }
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def padded(text: bytes, padding: int) -> bytes:
    """Length, JSON and padding: the file's bytes before its data."""
    length = len(text) + padding
    return length.to_bytes(LENGTH_BYTES, "little") + text.ljust(length)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique: dict[str, Any] = dict(pairs)
    if len(unique) != len(pairs):
        raise HeaderError("the header has a duplicate name")
    return unique


def _metadata(raw: Any) -> dict[str, str] | None:
    if raw is None:
        return None
    if not isinstance(raw, dict) or not all(isinstance(value, str) for value in raw.values()):
        raise HeaderError("__metadata__ does not map strings to strings")
    return raw


def _tensor(name: str, entry: Any) -> Tensor:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise HeaderError(f"tensor {name!r} has no dtype, shape or data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise HeaderError(f"tensor {name!r} has the unknown dtype {dtype!r}")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise HeaderError(f"tensor {name!r} has shape {shape!r} and offsets {offsets!r}")
    if (bits := prod(shape) * BITS[dtype]) != (offsets[1] - offsets[0]) * 8:
        raise HeaderError(
            f"tensor {name!r} of shape {shape} and {dtype} needs {bits // 8} bytes, but its offsets give"
            f" {offsets[1] - offsets[0]}"
        )
    return Tensor(sys.intern(name), sys.intern(dtype), _SHAPES.setdefault(tuple(shape), tuple(shape)), *offsets)


def _naturals(raw: Any) -> bool:
    return isinstance(raw, list) and all(type(number) is int and number >= 0 for number in raw)


def _check_no_holes(tensors: list[Tensor]) -> None:
    expected = 0
    for tensor in tensors:
        if tensor.begin != expected:
            raise HeaderError(
                f"tensor {tensor.name!r} starts at {tensor.begin}, but the data before it ends at {expected}"
            )
        expected = tensor.end


SCALE_SUFFIX = "_scale_inv"
FP8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
"""Unsigned integers of a scale's width: bits are moved, never computed with."""

Block = tuple[int, int]


def is_scale(name: str) -> bool:
    """Whether a tensor's name says that it holds the scales of another one."""
    return name.endswith(SCALE_SUFFIX)


def weight_of(scale: str) -> str:
    """Name of the weight that a scale belongs to."""
    return scale.removesuffix(SCALE_SUFFIX)


def scale_shape(weight: tuple[int, ...], block: Block) -> tuple[int, ...]:
    """Shape of the scales of a weight: its last two dimensions counted in blocks, rounded up."""
    return (*weight[:-2], -(-weight[-2] // block[0]), -(-weight[-1] // block[1]))


def misfits(tensors: Mapping[str, Tensor], block: Block) -> list[CheckpointFinding]:
    """Every FP8 weight without scales (SCALE-MISSING), scale without weight (SCALE-ORPHAN), and scale of another shape
    than the block's (SCALE-SHAPE)."""
    faults = []
    for name, tensor in tensors.items():
        if is_scale(name):
            faults += _misfit_of_scale(tensor, tensors.get(weight_of(name)), block)
        elif tensor.dtype in FP8 and len(tensor.shape) >= 2 and name + SCALE_SUFFIX not in tensors:
            what = f"{tensor.dtype} weight has no {name + SCALE_SUFFIX}"
            faults.append(CheckpointFinding("SCALE-MISSING", Severity.STOP, name, what))
    return faults


def _misfit_of_scale(scale: Tensor, weight: Tensor | None, block: Block) -> list[CheckpointFinding]:
    if weight is None:
        what = f"no shard contains its weight {weight_of(scale.name)}"
    elif weight.dtype not in FP8 or len(weight.shape) < 2:
        what = f"its weight is {weight.dtype} {list(weight.shape)}, not an FP8 matrix"
    else:
        wanted = scale_shape(weight.shape, block)
        if scale.shape == wanted and scale.element_bytes in CODES:
            return []
        what = (
            f"{scale.dtype} {list(scale.shape)}, but its weight {list(weight.shape)} in blocks of "
            f"{block[0]}x{block[1]} has {list(wanted)}"
        )
        return [CheckpointFinding("SCALE-SHAPE", Severity.STOP, scale.name, what)]
    return [CheckpointFinding("SCALE-ORPHAN", Severity.STOP, scale.name, what)]


def finer(scales: bytes, weight: tuple[int, ...], width: int, old: Block, new: Block) -> bytes:
    """The scales of the same weight for a finer block.

    scales: row-major elements of `width` bytes, of shape scale_shape(weight, old). new divides old.
    """
    rows, columns = scale_shape(weight, old)[-2:]
    new_rows, new_columns = scale_shape(weight, new)[-2:]
    down, across = old[0] // new[0], old[1] // new[1]
    source = array(CODES[width], scales)
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


_EXPONENTS = {
    "F16": ("H", 0x7C00),
    "BF16": ("H", 0x7F80),
    "F32": ("I", 0x7F80_0000),
    "F64": ("Q", 0x7FF0_0000_0000_0000),
}
"""By dtype the array code of its bits, and those of infinity (IEEE 754): above are NaNs, then all negative values."""


_NEGATIVE = dict.fromkeys(range(0x81, 0x100), "negative")
_ODD_BYTES: Mapping[str, Mapping[int, str]] = {
    "F8_E8M0": {0xFF: "NaN"},
    "F8_E4M3": {**_NEGATIVE, 0x7F: "NaN", 0xFF: "NaN"},
    "F8_E5M2": {
        **_NEGATIVE,
        **dict.fromkeys((0x7C, 0xFC), "infinite"),
        **dict.fromkeys((0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF), "NaN"),
    },
    "F8_E4M3FNUZ": {**_NEGATIVE, 0x80: "NaN"},
    "F8_E5M2FNUZ": {**_NEGATIVE, 0x80: "NaN"},
}
"""By dtype of one byte what is none of a quantisation's scales (OCP's 8-bit and microscaling formats; FNUZ: AMD's)."""
SCALE_TYPES = frozenset((*_EXPONENTS, *_ODD_BYTES, "U8"))
"""Floating point, and the bits of E8M0 as some write them."""


def odd_scale(raw: bytes, dtype: str) -> tuple[int, str] | None:
    """(index, kind) of the first scale that is NaN, infinite or negative; None where there is none, and for dtypes that
    have none of them or are not known."""
    if dtype not in _EXPONENTS or not raw:
        return _odd_byte(raw, _ODD_BYTES.get(dtype, {}))
    code, infinity = _EXPONENTS[dtype]
    bits = array(code, raw)
    if sys.byteorder == "big":
        bits.byteswap()
    if max(bits) < infinity:  # nearly always
        return None
    sign = 1 << (8 * bits.itemsize - 1)
    for at, value in enumerate(bits):
        size = value & ~sign
        if size > infinity:
            return at, "NaN"
        if size == infinity:
            return at, "infinite"
        if value > sign:
            return at, "negative"
    return None


def _odd_byte(raw: bytes, odd: Mapping[int, str]) -> tuple[int, str] | None:
    left = raw.translate(None, bytes(set(range(0x100)) - odd.keys()))
    return (raw.index(left[0]), odd[left[0]]) if left else None
