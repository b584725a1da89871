"""A thread that accesses the state directory for an agent: a disk may stall for minutes, and the agent must not.

A frozen file system, a network file system without its server, and a dying disk all block reads and writes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

MOST_BYTES = 8 << 20
"""Limit on data that waits to be written. Data beyond it is lost while the disk stalls, and the loss is counted."""
STALLS_AFTER_S = 5.0
"""A busy disk takes a second or two."""
JOB_BYTES = 200
"""Rough size of a job without its data."""

Job = Callable[[], None]


class Now:
    """Does each job at once, in the caller's thread."""

    def put(self, job: Job, *, replacing: str = "", size: int = 0) -> None:  # noqa: ARG002 - as Disk takes it
        """Do the job; if the disk refuses, the data is lost."""
        with contextlib.suppress(OSError):
            job()

    def settle(self, _: float) -> None:
        """Return at once: no job ever waits."""

    def remarks(self) -> list[str]:
        """No remarks."""
        return []


@dataclass(frozen=True)
class _Waiting:
    """A job in the queue, and the bytes that it holds."""

    job: Job
    name: str
    size: int


@dataclass
class Disk(Now):
    """Does jobs in the order given, without blocking the caller."""

    clock: Callable[[], float] = time.monotonic
    lost: int = 0
    """Bytes dropped because the queue was full."""
    _waiting: deque[_Waiting] = field(default_factory=deque)
    _bytes: int = 0
    _busy_since: float = 0.0
    _longest_s: float = 0.0
    _change: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None

    def put(self, job: Job, *, replacing: str = "", size: int = 0) -> None:
        """Queue a job. replacing: it replaces a waiting job of this name."""
        size += JOB_BYTES
        with self._change:
            if replacing:
                self._forget(replacing)
            if self._bytes + size > MOST_BYTES:
                self.lost += size - JOB_BYTES
                return
            self._waiting.append(_Waiting(job, replacing, size))
            self._bytes += size
            if self._thread is None:
                self._thread = threading.Thread(target=self._live, name="disk", daemon=True)
                self._thread.start()
            self._change.notify_all()

    def settle(self, deadline_s: float) -> None:
        """Wait until all jobs are done, or at most this long."""
        with self._change:
            self._change.wait_for(lambda: not self._waiting and not self._busy_since, deadline_s)

    def remarks(self) -> list[str]:
        """For the operator: that the disk stalls, or for how long it did, and what was lost."""
        with self._change:
            now_s = self.clock() - self._busy_since if self._busy_since else 0.0
            longest = max(self._longest_s, now_s)
            words = []
            if now_s >= STALLS_AFTER_S:
                words.append("the state directory does not respond: writes to it hang")
            elif longest >= STALLS_AFTER_S:
                words.append(f"writes to the state directory hung for {longest:.0f} s")
            if self.lost:
                words.append(f"{self.lost / 1e6:.1f} MB of the engine's log and events were lost in that time")
            return words

    def _forget(self, name: str) -> None:
        for one in self._waiting:
            if one.name == name:
                self._bytes -= one.size
                self._waiting.remove(one)
                return

    def _live(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting)
                one = self._waiting.popleft()
                self._busy_since = self.clock()
            with contextlib.suppress(OSError):
                one.job()
            with self._change:
                self._bytes -= one.size
                self._longest_s = max(self._longest_s, self.clock() - self._busy_since)
                self._busy_since = 0.0
                self._change.notify_all()
