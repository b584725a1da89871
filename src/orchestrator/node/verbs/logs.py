"""Verbs `logs` and `excerpt`: the engine's newest lines as they are, on request those to come, or those around one."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from io import FileIO
from itertools import chain
from typing import Any, BinaryIO

from orchestrator.node import files, processes, viewers
from orchestrator.node.bounded_log import predecessor
from orchestrator.node.engine.logfile import lines_at
from orchestrator.node.engine.watch import shown
from orchestrator.node.files import ENGINE_LOG
from orchestrator.node.requests import reader_is_gone, request_of
from orchestrator.node.verbs import report
from orchestrator.protocol.verbs import ExcerptAnswer, ExcerptRequest, LogsRequest

CHUNK = 64 * 1024
MOST_AT_ONCE = 1 << 20
POLL_S = 0.2
_STAMP = re.compile(rb"\d\d-\d\d[ T]\d\d:\d\d:\d\d")
MOST_TAIL_BYTES = 16 * 1024 * 1024


def stream(request: dict[str, Any]) -> None:
    """Write the last `lines` lines; with follow=true continue until the agent or the reader is gone."""
    asked = request_of(LogsRequest, request)
    folder = files.wanted_run(asked)
    path = f"{folder}/{ENGINE_LOG}"
    viewers.refuse_unreadable_log(path)
    out = sys.stdout.buffer
    with contextlib.ExitStack() as stack:
        file = _tail(path, max(0, asked.lines), out, asked.since_s)
        stack.callback(lambda: file.close() if file else None)
        while asked.follow:
            alive = processes.alive(*report.agent(folder))
            file, wrote = _follow(path, file, out)
            if not wrote and (not alive or reader_is_gone(POLL_S)):
                return


def _tail(path: str, lines: int, out: BinaryIO, since_s: float = 0.0) -> FileIO | None:
    """Write the last lines, those of the file before it where this one has too few; returns the file at its end."""
    file = _opened(path)
    kept = _last_lines(file, lines) if file else []
    if len(kept) < lines:
        before = _opened(predecessor(path))
        if before is not None and not _is_at(predecessor(path), file):
            kept = _last_lines(before, lines - len(kept)) + kept
        if before is not None:
            before.close()
    out.write(b"".join(_since(kept, since_s) if since_s else kept))
    out.flush()
    return file


def _since(lines: list[bytes], seconds: float) -> list[bytes]:
    """From the first line whose time, which engines write in the node's own zone and partly without a year, is not
    older."""
    oldest, now = (
        time.strftime("%m-%d %H:%M:%S", time.localtime(at)).encode() for at in (time.time() - seconds, time.time())
    )
    for place, line in enumerate(lines):
        if stamped := _STAMP.search(line):
            stamp = stamped[0].replace(b"T", b" ")
            if stamp >= oldest or (now < oldest and stamp <= now):  # a new year has begun in between
                return lines[place:]
    return []


def _last_lines(file: FileIO, lines: int) -> list[bytes]:
    end = file.seek(0, os.SEEK_END)
    begin, count = end, 0
    while lines and begin > 0 and count <= lines and end - begin < MOST_TAIL_BYTES:
        step = min(CHUNK, begin)
        begin -= step
        file.seek(begin)
        count += file.read(step).count(b"\n")
    file.seek(begin)
    return file.read(end - begin).splitlines(keepends=True)[-lines:] if lines else []


def _follow(path: str, file: FileIO | None, out: BinaryIO) -> tuple[FileIO | None, bool]:
    """Write what is new. A file that was moved away is read to its end, which nobody writes behind any more, first."""
    moved = not _is_at(path, file)
    data = file.read(MOST_AT_ONCE) if file else b""
    if not data and moved and (newer := _opened(path)):
        if file is not None:
            file.close()
        file, data = newer, newer.read(MOST_AT_ONCE)
    if data:
        out.write(data)
        out.flush()
    return file, bool(data)


def _opened(path: str) -> FileIO | None:
    try:
        return FileIO(path)
    except FileNotFoundError:
        return None


def _is_at(path: str, file: FileIO | None) -> bool:
    """The open file is still the one at this path: its inode can't be reused while it is open."""
    try:
        return file is not None and os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def excerpt(request: dict[str, Any]) -> dict[str, Any]:
    """{"found", "lines", "marked"}: `before` lines, the line itself, and `after` lines.

    lines:  texts of the log in their order; the place of the last of them is looked for, after all the others
    marked: the place of that line in the answer, -1 where it is not in the log: then these are the last lines
    """
    asked = request_of(ExcerptRequest, request)
    path = f"{files.wanted_run(asked)}/{ENGINE_LOG}"
    viewers.refuse_unreadable_log(path)
    with files.state_failures(path):
        return cut(
            chain(lines_at(predecessor(path)), lines_at(path)), asked.lines, max(0, asked.before), max(0, asked.after)
        ).as_json()


def cut(lines: Iterator[str], wanted: Sequence[str], before: int, after: int) -> ExcerptAnswer:
    """The excerpt out of a log's lines."""
    kept: deque[str] = deque(maxlen=max(before + 1, 1))
    seen = 0
    for line in lines:
        kept.append(line)
        seen += seen < len(wanted) and wanted[seen] == shown(line)
        if wanted and seen == len(wanted):
            tail = [line for line, _ in zip(lines, range(after), strict=False)]
            return ExcerptAnswer(found=True, lines=(*kept, *tail), marked=len(kept) - 1)
    return ExcerptAnswer(lines=tuple(kept)[-max(before, 1) :])
