"""A process as one that we started: its number together with its start time, so that a reused number is not it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

_WAITERS_S = 0.3
"""After this long, a process is not just about to end."""


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
        """Kill it and wait until it is gone; False when it outlived the deadline.

        PID 1 of a namespace is gone when all in it are, and have been waited for.
        """
        self.kill()
        deadline = time.monotonic() + deadline_s
        while not wait_until(lambda: not self.alive, deadline_s=_WAITERS_S):
            wake_waiters(self.pid)
            if time.monotonic() > deadline:
                return False
        return True


def wait_until(condition: Callable[[], bool], *, deadline_s: float, step_s: float = 0.005) -> bool:
    """Poll a condition until it holds or the deadline passes; returns whether it holds."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(step_s)
    return True


def wake_waiters(pid: int) -> None:
    """Let every nsenter(1) go on that entered the namespaces of this process, or of one below it, and stands still.

    It stops itself when what it runs there is stopped (util-linux, sys-utils/nsenter.c:continue_as_child), and then
    nobody waits for that process' end.
    """
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if words[:2] != [b"nsenter", b"-t"] or state(int(entry.name)) != b"T":
                continue
            if pid in _line_of(int(words[2])):
                os.kill(int(entry.name), signal.SIGCONT)
        except (OSError, ValueError, IndexError):
            continue  # it ended while we looked, or is somebody else's


def _line_of(pid: int) -> Iterator[int]:
    """A process, its parent, and so on."""
    while pid > 1:
        yield pid
        pid = int(_stat(pid)[1])


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
        state, *fields = _stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in (b"Z", b"X") else int(fields[18])


def state(pid: int) -> bytes:
    """The letter of a process' state, as b"T" for stopped (proc(5)); raises OSError where it is gone."""
    return _stat(pid)[0]


def _stat(pid: int) -> list[bytes]:
    """/proc/PID/stat from its third field on, the state (proc(5))."""
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    return stat[stat.rindex(b")") + 2 :].split()
