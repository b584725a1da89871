"""Identifies a process that we started by its pid and start time, so that a reused pid is not mistaken for it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from l40s_lab import syscalls
from orchestrator.node import processes

_WAITERS_S = 0.3
"""A process that lives longer than this is not just about to end."""


@dataclass(frozen=True, slots=True)
class Identity:
    """pid with field 22 of /proc/PID/stat (clock ticks since boot) and the boot it was seen in."""

    pid: int
    start: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """The identity of a living process, None if there is none."""
        found = processes.read(pid)
        return None if found is None or found.gone else cls(pid, found.start, processes.boot_id())

    @property
    def alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        return self.boot == processes.boot_id() and processes.alive(self.pid, self.start)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Signal it if it is still the same process."""
        if self.alive:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

    def end(self, *, deadline_s: float) -> bool:
        """Kill it and wait until it is gone; False if it is still there at the deadline.

        PID 1 of a namespace is gone once all processes in it have ended and been reaped.
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
    """Continue every stopped nsenter(1) that entered the namespaces of this process, or of one below it.

    nsenter stops itself when the program that it runs is stopped (util-linux, sys-utils/nsenter.c:continue_as_child),
    and then nobody waits for that program to end.
    """

    def waits(entry: Path) -> bool:
        words = (entry / "cmdline").read_bytes().split(b"\0")
        found = processes.read(int(entry.name)) if words[:2] == [b"nsenter", b"-t"] else None
        return found is not None and found.state == "T" and pid in _line_of(int(words[2]))

    for waiter in those(waits):
        waiter.kill(signal.SIGCONT)


def those(belongs: Callable[[Path], bool]) -> Iterator[Identity]:
    """The processes whose directories in /proc fit; those that end meanwhile, or are another user's, do not."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                if belongs(entry) and (identity := Identity.of(int(entry.name))) is not None:
                    yield identity


def has_in_environment(entry: Path, variable: str) -> bool:
    """Whether the process with this directory in /proc was started with NAME=VALUE."""
    return os.fsencode(variable) in (entry / "environ").read_bytes().split(b"\0")


def _line_of(pid: int) -> Iterator[int]:
    """A process, its parent, and so on."""
    while pid > 1:
        yield pid
        found = processes.read(pid)
        pid = found.parent if found is not None else 0


def outlive_starter(give_up: Callable[[], None]) -> None:
    """Of a lab's supervisor: tell the starter that all is ready; once it agrees, outlive it, else give up."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if sys.stdin.readline().strip() != "detach":
        give_up()
    syscalls.die_with_parent(0)


def to_nothing(*descriptors: int) -> None:
    """Connect these open files of the process to /dev/null."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(nothing, descriptor)


def reap_for_ever() -> NoReturn:
    """Reap children forever: the duty of a namespace's PID 1, and of any process that adopts orphans."""
    while True:
        if not _reaped_one():
            time.sleep(1.0)


def _reaped_one() -> bool:
    try:
        os.wait()
    except ChildProcessError:
        return False
    return True
