"""A thread that accesses the state directory for an agent: a disk may stall for minutes, and the agent must not.

A frozen file system, a network file system without its server, and a dying disk block whoever reads or writes there.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

MOST_BYTES = 8 << 20
"""Of what waits to be written; what comes on top while the disk stalls is lost, and counted."""
STALLS_AFTER_S = 5.0
"""A disk under load takes a second or two."""
JOB_BYTES = 200
"""What a job takes beside its data, about."""

Job = Callable[[], None]


class Now:
    """Does each job at once, where it is given."""

    def put(self, job: Job, *, replacing: str = "", size: int = 0) -> None:  # noqa: ARG002 - as Disk takes it
        """Do it; a disk that refuses loses what was to be written."""
        with contextlib.suppress(OSError):
            job()

    def settle(self, _: float) -> None:
        """Nothing waits."""

    def remarks(self) -> list[str]:
        """Nothing to say."""
        return []


@dataclass(frozen=True)
class _Waiting:
    job: Job
    name: str
    size: int


@dataclass
class Disk(Now):
    """Does jobs one after the other, in the order given, without letting the giver wait."""

    clock: Callable[[], float] = time.monotonic
    lost: int = 0
    """Bytes that found no room."""
    _waiting: deque[_Waiting] = field(default_factory=deque)
    _bytes: int = 0
    _busy_since: float = 0.0
    _longest_s: float = 0.0
    _change: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None

    def put(self, job: Job, *, replacing: str = "", size: int = 0) -> None:
        """Let a job be done. replacing: it takes the place of one of this name that still waits."""
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
        """Wait until everything is done, or not longer than this."""
        with self._change:
            self._change.wait_for(lambda: not self._waiting and not self._busy_since, deadline_s)

    def remarks(self) -> list[str]:
        """What the operator should know: that it stalls, or has for how long, and what was lost."""
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
