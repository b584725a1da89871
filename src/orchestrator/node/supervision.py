"""What an agent does with processes: it looks at all of them, signals them, and ends its own children."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable

from orchestrator.node.processes import LONGEST_STAT, Process, read

PF_EXITING = 0x4
"""Of the flags in /proc/PID/stat: the thread is ending (include/linux/sched.h)."""
_POLL_S = 0.002
_KILLED_S = 0.2
"""A process that sleeps in the kernel does not end by then, or ever."""


def processor_s(pid: int) -> float:
    """Seconds of processor time that a process has had (proc(5): schedstat, in nanoseconds); 0.0 where not told."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb", buffering=0) as file:
            return int(file.read(LONGEST_STAT).split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def doomed(pid: int, start: int) -> bool:
    """The very process has ended, is ending, or can't refuse to: each of its threads has SIGKILL pending as soon as any
    signal ends them all (kernel/signal.c, complete_signal), before the first of them is gone."""
    process = read(pid)
    if process is None or process.start != start or process.gone or process.flags & PF_EXITING:
        return True
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            pending = [line.split()[1] for line in file if line.startswith((b"SigPnd:", b"ShdPnd:"))]
    except OSError:
        return True
    return any(int(signals, 16) >> (signal.SIGKILL - 1) & 1 for signals in pending)


def exit_code(child: int, within_s: float) -> int | None:
    """Of our own child, negative for a signal; None if it still runs (seconds from now), or is not ours to wait for."""
    end = time.monotonic() + within_s
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() >= end:
                return None
            time.sleep(_POLL_S)
    return None


def kill_child(child: int) -> int | None:
    """End our own child, and take its exit code if it can end."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    return exit_code(child, _KILLED_S)


def stopped(pid: int) -> bool:
    """A signal has stopped it (T, proc(5)), and it does nothing until SIGCONT."""
    process = read(pid)
    return process is not None and process.state == "T"


def everything() -> list[Process]:
    """All processes that this PID namespace shows."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in map(read, pids) if process is not None]


def descendants(roots: Iterable[int], processes: Iterable[Process]) -> list[Process]:
    """Everything below the roots, nearest first, without the roots themselves."""
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    waiting = list(roots)
    seen = set(waiting)
    while waiting:
        for child in children.get(waiting.pop(0), ()):
            if child.pid not in seen:
                seen.add(child.pid)
                found.append(child)
                waiting.append(child.pid)
    return found


def title(pid: int) -> str:
    """The command line, words joined by blanks; a process that gave itself a title shows that."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().rstrip(b"\0 ").replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def send(pid: int, start: int, number: int) -> bool:
    """Signal the very process: the id is held by a pidfd while its start time is compared."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        process = read(pid)
        if process is None or process.start != start:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    else:
        return True
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)
