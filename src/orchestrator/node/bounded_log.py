"""Logs that are bounded: a full one moves to its one predecessor. Here too, what several processes write."""

from __future__ import annotations

import contextlib
import fcntl
import os

from orchestrator.node import viewers

LOG_LIMIT = 8 << 20
"""Bytes of a log that is kept with one predecessor; some 30,000 actions."""


def predecessor(path: str) -> str:
    """Where the lines are that a log of this path had before its own."""
    return f"{path}.1"


def begin_anew(path: str) -> None:
    """The log moves to its predecessor, which it replaces. Raises OSError."""
    os.replace(path, predecessor(path))


def append_line(path: str, text: str, *, limit: int = LOG_LIMIT) -> None:
    """One more line at the end of a log that several processes write; beyond `limit` bytes it begins anew.
    Raises OSError."""
    while True:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with open(descriptor, "a", encoding="utf-8") as file:
            with contextlib.suppress(PermissionError):  # another user's, who lets us write it
                os.fchmod(descriptor, viewers.file_mode(path))
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            now = os.fstat(descriptor)
            if _moved(path, now):
                continue
            if now.st_size + len(text) <= limit or not now.st_size:
                file.write(text + "\n")
                return
            begin_anew(path)


def _moved(path: str, opened: os.stat_result) -> bool:
    try:
        state = os.stat(path)
    except FileNotFoundError:
        return True
    return (state.st_dev, state.st_ino) != (opened.st_dev, opened.st_ino)
