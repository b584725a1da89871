"""Page cache use of a folder's files: evicted before a start, counted after it."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path


def forget(folder: Path) -> None:
    """Evict a folder's files from the page cache."""
    for file in _files(folder):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached(folder: Path, pattern: str = "*") -> int:
    """Bytes of a folder's files in the page cache, in full pages (mincore(2))."""
    return sum(_cached(file) for file in _files(folder, pattern))


def whole(folder: Path, pattern: str = "*") -> int:
    """Bytes of all pages of these files."""
    sizes = [file.stat().st_size for file in _files(folder, pattern)]
    return sum(-(-size // mmap.PAGESIZE) * mmap.PAGESIZE for size in sizes)


def _files(folder: Path, pattern: str = "*") -> Iterator[Path]:
    return (file for file in folder.rglob(pattern) if file.is_file())


def _cached(file: Path) -> int:
    size = file.stat().st_size
    if not size:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    pages = -(-size // mmap.PAGESIZE)
    held = (ctypes.c_ubyte * pages)()
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), size, flags=mmap.MAP_PRIVATE,
                                              prot=mmap.PROT_READ | mmap.PROT_WRITE) as seen:  # fmt: skip
        start = (ctypes.c_char * size).from_buffer(seen)
        try:
            if libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), held):
                raise OSError(ctypes.get_errno(), "mincore", str(file))
        finally:
            del start
    return sum(page & 1 for page in held) * mmap.PAGESIZE
