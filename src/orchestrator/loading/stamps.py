"""Whether the files of an inventory have changed since somebody read them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

MOST = 10_000
"""Files of one inventory that are looked at; those after it count as unchanged."""

Stamp = tuple[tuple[str, int, int, int, int], ...]
"""Path, inode, size, and the times of the last change of content and of inode, in ns, of each file."""


def stamp_of(inventory: str | Path) -> Stamp:
    """Of the file or folder, whatever it links to, and of group_vars/ and host_vars/ beside it: those that are read,
    and those that would be. Another one once any of them was written, replaced, made, moved or deleted."""
    path = Path(inventory)
    there = path.resolve()
    if there.is_dir():
        files = _below(there)
    else:
        files = iter((there, *_below(there.parent / "group_vars"), *_below(there.parent / "host_vars")))
    return tuple(_stamped(file) for file, _ in zip(files, range(MOST), strict=False))


def _below(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders.sort()
        yield from (Path(parent, name) for name in sorted(names))


def _stamped(file: Path) -> tuple[str, int, int, int, int]:
    try:
        status = file.stat()
    except OSError:
        return str(file), 0, 0, 0, 0
    return str(file), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
