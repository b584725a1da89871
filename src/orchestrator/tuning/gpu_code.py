"""Which GPUs a library holds code for: its fat binaries, read as nvcc writes them. Pure.

A fat binary is a header and entries, each of machine code (a cubin) for one architecture, or of PTX, which the driver
compiles. The layout is not documented; it was read off libraries that nvcc 13.0 made for known architectures
(tests/unit/tuning), and off the wheels of torch, NCCL, cuBLAS and sgl-kernel.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from mmap import mmap

_ELF = b"\x7fELF\x02\x01"
"""64 bits, little-endian."""
_SECTION = b"\0.nv_fatbin\0"
"""Among the names of a library's sections, where nvcc has put code. Some keep it elsewhere too (cuFFT)."""
_HEADER = struct.Struct("<IHHQ")
"""Magic, version, bytes of this header, bytes of the entries after it."""
_MARK = struct.pack("<IHH", 0xBA55ED50, 1, _HEADER.size)
_ENTRY = struct.Struct("<HHIQ8xHHII4xQ")
"""Kind, version, bytes of this header and of what follows it, minor and major of its format, architecture, flags."""
_FORMS = {1: "compute", 2: "sm", 8: "lto"}
"""PTX, a cubin, and what is linked and compiled at run time (nvJitLink)."""
_ONLY_HERE = 0x100000
"""Flag of an architecture's own code (sm_90a): no other architecture runs it."""
_FAMILY_DIGITS = 10


@dataclass(frozen=True, slots=True, order=True)
class Code:
    """Of one entry. arch: 89 for 8.9; form: of _FORMS; only_here: sm_90a"""

    arch: int
    form: str = "sm"
    only_here: bool = False

    def __str__(self) -> str:
        """As cuobjdump has it: 'sm_89', 'sm_90a', 'compute_90'."""
        return f"{self.form}_{self.arch}{'a' if self.only_here else ''}"

    def runs_on(self, arch: int) -> bool:
        """Machine code runs on its own major version from its minor one on, what is compiled later from its
        architecture on (CUDA Programming Guide, "Binary compatibility", "PTX compatibility")."""
        if self.only_here:
            return self.arch == arch
        same_major = self.arch // _FAMILY_DIGITS == arch // _FAMILY_DIGITS
        return self.arch <= arch and (self.form != "sm" or same_major)


class Holds(str, Enum):
    """What a library has for a GPU, the gravest first. NONE: not a kernel that it could run; PARTLY: some of its fat
    binaries have none; PTX: what is compiled at the first use; OLDER: machine code of an earlier GPU of the
    same family; OWN: of this very one; NO_CODE: no GPU code at all"""

    UNKNOWN = "unknown"
    NONE = "none"
    PARTLY = "partly"
    PTX = "ptx"
    OLDER = "older"
    OWN = "own"
    NO_CODE = "no-gpu-code"


Fatbin = frozenset[Code]
"""What one fat binary holds."""


@dataclass(frozen=True, slots=True)
class CodePlace:
    """One entry. kind: of _FORMS, or one that is not known; start, end: of its code in the library, behind its
    header"""

    kind: int
    arch: int
    flags: int
    start: int
    end: int

    @property
    def form(self) -> str:
        """As of `Code`; '' for a kind that is not known."""
        return _FORMS.get(self.kind, "")


def code_places(library: bytes | mmap, start: int = 0, end: int | None = None) -> Iterator[tuple[CodePlace, ...]]:
    """The entries of each fat binary between these places. Raises ValueError for one that is cut off, or that has an
    entry of another format."""
    last = len(library) if end is None else end
    place = library.find(_MARK, start, last)
    while place >= 0:
        begin, beyond = place + _HEADER.size, place + _HEADER.size + _length(library, place)
        if beyond > last:
            raise ValueError(f"at {place:#x}: it ends before its fat binary does")
        yield tuple(_entries(library, begin, beyond))
        place = library.find(_MARK, beyond, last)


def fatbins(library: bytes | mmap) -> tuple[Fatbin, ...]:
    """Of a shared library, wherever they lie in it; () where it has no GPU code.

    Raises ValueError for what is no ELF library of 64 bits, is cut off, or has only fat binaries of another format.
    """
    if library[: len(_ELF)] != _ELF:
        raise ValueError("no ELF library of 64 bits")
    held = tuple(frozenset(map(_code_of, places)) for places in code_places(library))
    if not held and library.find(_SECTION) >= 0:
        raise ValueError("its fat binaries have another format")
    return held


def _code_of(place: CodePlace) -> Code:
    if not place.form:
        raise ValueError(f"at {place.start:#x}: code of a kind that is not known ({place.kind})")
    return Code(place.arch, place.form, only_here=bool(place.flags & _ONLY_HERE))


def _length(library: bytes | mmap, place: int) -> int:
    if place + _HEADER.size > len(library):
        raise ValueError(f"at {place:#x}: it ends before its fat binary does")
    return int(_HEADER.unpack_from(library, place)[-1])


def _entries(library: bytes | mmap, place: int, end: int) -> Iterator[CodePlace]:
    while place + _ENTRY.size <= end:
        kind, _, header, length, _, _, arch, _, flags = _ENTRY.unpack_from(library, place)
        if header < _ENTRY.size or place + header + length > end:
            raise ValueError(f"at {place:#x}: no entry of a known format")
        start = place + header
        yield CodePlace(kind=kind, arch=arch, flags=flags, start=start, end=start + length)
        place = start + length


_LISTED = re.compile(r"(?:^|\.)(?P<kind>sm|compute)_(?P<arch>\d{2,3})(?P<only>[a-z]?)(?=\.|$)")


def listed(text: str) -> tuple[Fatbin, ...]:
    """What `cuobjdump --list-elf --list-ptx` prints of a library, `ELF file    1: name.1.sm_89.cubin`: as one fat
    binary, for it does not say which belongs to which."""
    found = set()
    for line in text.splitlines():
        kind, _, name = line.partition(" file ")
        for match in _LISTED.finditer(name.strip()):
            form = "compute" if kind == "PTX" else "sm"
            found.add(Code(int(match["arch"]), form, only_here=bool(match["only"])))
    return (frozenset(found),) if found else ()


def holds(found: Sequence[Fatbin], arch: int) -> Holds:
    """What a library has for this architecture. Empty fat binaries say nothing."""
    filled = [fatbin for fatbin in found if fatbin]
    if not filled:
        return Holds.NO_CODE
    running = [[code for code in fatbin if code.runs_on(arch)] for fatbin in filled]
    if not any(running):
        return Holds.NONE
    if not all(running):
        return Holds.PARTLY
    return min((_kind(codes, arch) for codes in running), key=list(Holds).index)


def _kind(codes: Sequence[Code], arch: int) -> Holds:
    machine = [code.arch for code in codes if code.form == "sm"]
    if not machine:
        return Holds.PTX
    return Holds.OWN if max(machine) == arch else Holds.OLDER


def arch_of(word: str) -> int:
    """89 for 'sm_89', '8.9' or '89'. Raises ValueError for another word."""
    match = re.fullmatch(r"(?:sm_)?(\d{1,2})\.?(\d)", word)
    if match is None:
        raise ValueError(f"found {word!r}, wanted a compute capability, as sm_89 or 8.9")
    return int(match[1] + match[2])
