"""A process as one that we started: its number together with its start time, so that a reused number is not it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn


@dataclass(frozen=True, slots=True)
class Identity:
    """pid with field 22 of /proc/PID/stat (clock ticks since boot) and the boot it was seen in."""

    pid: int
    start: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """The identity of a living process, None when there is none."""
        start = _start_of_living(pid)
        return None if start is None else cls(pid, start, boot_id())

    @property
    def alive(self) -> bool:
        """The very process still runs; a zombie does not."""
        return self.boot == boot_id() and _start_of_living(self.pid) == self.start

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Signal it if it is still the same process."""
        if self.alive:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

    def end(self, *, deadline_s: float) -> bool:
        """Kill it and wait until it is gone; False when it outlived the deadline."""
        self.kill()
        return wait_until(lambda: not self.alive, deadline_s=deadline_s)


def wait_until(condition: Callable[[], bool], *, deadline_s: float, step_s: float = 0.005) -> bool:
    """Poll a condition until it holds or the deadline passes; returns whether it holds."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(step_s)
    return True


def reap_for_ever() -> NoReturn:
    """What PID 1 of a namespace, or who adopts orphans, has to do for the rest of its life."""
    while True:
        if not _reaped_one():
            time.sleep(1.0)


def _reaped_one() -> bool:
    try:
        os.wait()
    except ChildProcessError:
        return False
    return True


def boot_id() -> str:
    """The kernel's name for this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _start_of_living(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat[stat.rindex(b")") + 2 :].split()
    return None if state in (b"Z", b"X") else int(fields[18])
