"""Bytes as people read them, in messages of nodes and on screens alike."""

from __future__ import annotations

GIB = 1 << 30
_UNITS = (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10))


def in_words(count: int) -> str:
    """In the unit that suits: `3 B`, `1.5 MiB`, `12.3 GiB`."""
    for unit, size in _UNITS:
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def gib(count: int, digits: int = 2) -> str:
    """The number of GiB alone, for arithmetic that is shown."""
    return f"{count / GIB:.{digits}f}"
