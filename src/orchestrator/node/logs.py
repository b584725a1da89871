"""Verb `logs`: the engine's newest lines as they are, and on request the ones to come."""

from __future__ import annotations

import os
import select
import sys
from typing import Any, BinaryIO

from orchestrator.node import files, report

CHUNK = 64 * 1024
POLL_S = 0.2
MOST_TAIL_BYTES = 16 * 1024 * 1024


def stream(request: dict[str, Any]) -> None:
    """Write the last `lines` lines; with follow=true go on until the agent is gone or nobody reads."""
    folder = files.wanted_run(request)
    path = f"{folder}/engine.log"
    out = sys.stdout.buffer
    position, inode = _tail(path, max(0, int(request.get("lines", 100))), out)
    while request.get("follow"):
        alive = bool(report.of_run(folder).get("alive"))
        position, inode, wrote = _follow(path, position, inode, out)
        if not alive and not wrote:
            return
        if not wrote and _reader_is_gone(out):
            return


def _tail(path: str, lines: int, out: BinaryIO) -> tuple[int, int]:
    """Write the last lines; returns where the file ended and which file it was."""
    try:
        with open(path, "rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            end = file.seek(0, os.SEEK_END)
            begin, count = end, 0
            while lines and begin > 0 and count <= lines and end - begin < MOST_TAIL_BYTES:
                step = min(CHUNK, begin)
                begin -= step
                file.seek(begin)
                count += file.read(step).count(b"\n")
            file.seek(begin)
            text = file.read(end - begin)
    except FileNotFoundError:
        return 0, 0
    kept = text.splitlines(keepends=True)[-lines:] if lines else []
    out.write(b"".join(kept))
    out.flush()
    return end, inode


def _follow(path: str, position: int, inode: int, out: BinaryIO) -> tuple[int, int, bool]:
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno()).st_ino
            if found != inode:  # rotated, or there for the first time
                position = 0
            file.seek(position)
            data = file.read(1 << 20)
    except FileNotFoundError:
        return position, inode, False
    if data:
        out.write(data)
        out.flush()
    return position + len(data), found, bool(data)


def _reader_is_gone(out: BinaryIO) -> bool:
    """Wait a little for the reader of our pipe to close its end."""
    poll = select.poll()
    poll.register(out.fileno(), 0)  # errors and hang-ups are always told
    return bool(poll.poll(POLL_S * 1000))
