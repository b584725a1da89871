"""Chunks of bytes into lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

LONGEST = 1 << 20
"""A line without a newline for this many bytes is handed on in parts."""


def lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines with their newlines; what follows the last newline comes at the end."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line + b"\n" for line in whole)
        if len(rest) > LONGEST:
            yield rest
            rest = b""
    if rest:
        yield rest
