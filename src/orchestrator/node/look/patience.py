"""Reads in a child process that may hang: one wedged file of /sys costs its own deadline, not the entire probe.

A read that sleeps in the kernel can't be ended, so the child is left behind; it holds none of our
descriptors. What it touched last is known from shared memory: that path is recorded as ETIMEDOUT, and another child
goes on without it.

A child that waits for a processor does not hang: what counts against a path is the time that the child sleeps there
(states D and S), and the processor time that it takes there.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, BinaryIO

from orchestrator.node import processes, supervision
from orchestrator.node.look.hardware import PARTS, HardwarePart
from orchestrator.node.look.reading import SnapshotReader

FILE_DEADLINE_S = 1.0
"""Asleep, or computing, at one path."""
DEADLINE_S = 10.0
"""By the wall clock, for everything: what is not read by then is unknown, on a busy machine too."""
_LONGEST_PATH = 1000
POLL_S = 0.1


class ProgressPage:
    """A page that two processes share: how many paths were touched, and the one that is touched now."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)
        self._count = 0

    def begin(self, path: str) -> None:
        """Called by the child before it touches a path."""
        self._count += 1
        name = path.encode("utf-8", "surrogateescape")[:_LONGEST_PATH]
        self._page[: 10 + len(name)] = self._count.to_bytes(8, "little") + len(name).to_bytes(2, "little") + name

    def now(self) -> tuple[int, str]:
        """Called by the parent: (count, path)."""
        head = self._page[:10]
        length = int.from_bytes(head[8:], "little")
        return int.from_bytes(head[:8], "little"), self._page[10 : 10 + length].decode("utf-8", "surrogateescape")


class StallTimer:
    """How long a process has been at the same place, as far as it had what it needs to go on.

    Each look adds the time since the last one if the process sleeps (D, S, T: proc(5)), at most twice the pause that
    is meant between two looks, since whoever looks may have waited for a processor too; and the processor time that it
    used. One that is runnable and waits for its turn gets no older.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._place: object = None
        self.begin(None)

    def begin(self, place: object) -> None:
        """It moved: count anew."""
        self._place, self._last = place, time.monotonic()
        self._used, self._asleep_s = supervision.processor_s(self._pid), 0.0

    def spent_s(self, place: object) -> float:
        """Seconds that count against it at this place."""
        if place != self._place:
            self.begin(place)
            return 0.0
        now, process = time.monotonic(), processes.read(self._pid)
        if process is None or process.state in "DST":
            self._asleep_s += min(now - self._last, 2 * POLL_S)
        self._last = now
        return self._asleep_s + supervision.processor_s(self._pid) - self._used


def read_hardware(
    root: str, *, parts: Sequence[HardwarePart] = PARTS, hung: dict[str, str] | None = None
) -> dict[str, Any]:
    """{'files', 'links', 'errors'} of all parts.

    A path that hangs is an error of its own (ETIMEDOUT); parts that were not read before the deadline are named in
    errors under their own names. hung: paths that are known to hang, and those that are found to, for the next time.
    """
    gathered: dict[str, dict[str, str]] = {"files": {}, "links": {}, "errors": {}}
    skip: dict[str, str] = {} if hung is None else hung
    left = list(parts)
    end = time.monotonic() + DEADLINE_S
    while left and time.monotonic() < end:
        done, stuck = _one_child(root, left, skip, gathered, end)
        left = left[done:]
        if stuck and left:
            skip[stuck] = "ETIMEDOUT"
            gathered["errors"][stuck] = "ETIMEDOUT"
        elif left and not done:  # it died without a word; it would die again
            gathered["errors"][left.pop(0).name] = "ECHILD"
    for part in left:
        gathered["errors"][part.name] = "ETIMEDOUT"
    return gathered


def _one_child(
    root: str, parts: Sequence[HardwarePart], skip: dict[str, str], gathered: dict[str, dict[str, str]], end: float
) -> tuple[int, str]:
    """How many parts came back, and the path that a child hung at ('' where it did not)."""
    heartbeat = ProgressPage()
    reader = SnapshotReader(root=root, begin=heartbeat.begin, skip=skip)
    child, reading = forked(partial(_read_parts, reader, parts))
    stuck = ""
    buffer = bytearray()
    patience = StallTimer(child)
    try:
        while True:
            if select.select([reading], [], [], POLL_S)[0]:
                data = os.read(reading, 1 << 20)
                if not data:
                    break
                buffer += data
                patience.begin(heartbeat.now())
                continue
            place = heartbeat.now()
            if patience.spent_s(place) > FILE_DEADLINE_S:
                stuck = place[1]
                break
            if time.monotonic() > end:
                break
    finally:
        os.close(reading)
        supervision.kill_child(child)
    lines = bytes(buffer).split(b"\n")[:-1]
    for line in lines:
        for key, values in json.loads(line).items():
            gathered[key].update(values)
    return len(lines), stuck


def _read_parts(reader: SnapshotReader, parts: Sequence[HardwarePart], file: BinaryIO) -> None:
    """The child: one line of JSON for each part."""
    for part in parts:
        part.read(reader)
        file.write(json.dumps(reader.take(), separators=(",", ":")).encode("ascii") + b"\n")
        file.flush()


def forked(work: Callable[[BinaryIO], object]) -> tuple[int, int]:
    """(process id, descriptor to read) of a child of this process that does its work, then ends, whatever happens.

    It holds no other descriptor of ours: whoever waits for our output must not wait for a child that hangs.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    status = 1
    try:
        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(quiet, descriptor)
        os.closerange(3, writing)
        os.closerange(writing + 1, os.sysconf("SC_OPEN_MAX"))
        with open(writing, "wb") as file:
            work(file)
        status = 0
    finally:
        os._exit(status)
