"""What an agent does with processes: it looks at all of them, tells how they died, signals them, and ends its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from orchestrator.node.processes import LONGEST_STAT, Process, read

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
"""Of prctl(2), which the standard library does not have."""
PF_EXITING = 0x4
"""Of the flags in /proc/PID/stat: the thread is ending (include/linux/sched.h)."""
_POLL_S = 0.002
_KILL_EVERY_S = 0.02
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
    below: list[Process] = []
    waiting = list(roots)
    seen = set(waiting)
    while waiting:
        for child in children.get(waiting.pop(0), ()):
            if child.pid not in seen:
                seen.add(child.pid)
                below.append(child)
                waiting.append(child.pid)
    return below


def kill_below(seconds: float, reap: Callable[[], object]) -> None:
    """SIGKILL for everything below us until nothing is left, or for so long; reap: takes the ends of children.

    We must be the parent of orphans: `adopt_orphans`.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        reap()
        below = [process for process in descendants([os.getpid()], everything()) if not process.gone]
        if not below:
            return
        for process in below:
            send(process.pid, process.start, signal.SIGKILL)
        time.sleep(_KILL_EVERY_S)


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


_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_INFO_SIZE = 64
_PIDFD_GET_INFO = (3 << 30) | (_PIDFD_INFO_SIZE << 16) | (0xFF << 8) | 11
"""_IOWR(0xFF, 11, struct pidfd_info), include/uapi/linux/pidfd.h; exit status after reaping since Linux 6.15."""


@dataclass(frozen=True)
class Death:
    """signal or exit code; both None if unknown."""

    signal: int | None = None
    exit_code: int | None = None

    @classmethod
    def of(cls, status: int) -> Death:
        """From a wait status, as waitpid and field 52 of /proc/PID/stat give it."""
        if os.WIFSIGNALED(status):
            return cls(signal=os.WTERMSIG(status))
        return cls(exit_code=os.WEXITSTATUS(status))

    @classmethod
    def of_child(cls, code: int | None) -> Death:
        """From an exit code as subprocess gives it, negative for a signal; None if it is unknown."""
        return cls(signal=-code) if code is not None and code < 0 else cls(exit_code=code)

    def words(self) -> str:
        """For the operator: 'killed by signal 9 (SIGKILL)', 'exited with code 1', 'exit status unknown'."""
        if self.signal is not None:
            return f"killed by signal {self.signal} ({_name(self.signal)})"
        if self.exit_code is not None:
            return f"exited with code {self.exit_code}"
        return "ended, exit status unknown"

    def clause(self) -> str:
        """The same as a predicate: 'was killed by signal 9 (SIGKILL)', 'exited with code 1'."""
        return ("was " if self.signal is not None else "") + self.words()


UNKNOWN = Death()


def death_of(pid: int, start: int, pidfd: int) -> Death:
    """Ask the zombie's stat first, then the pidfd (which still knows after the parent has reaped the process)."""
    process = read(pid)
    if process is not None and process.start == start and process.gone:
        return Death.of(process.exit_code) if _may_read(pid) else UNKNOWN
    return _told_by(pidfd)


def _told_by(pidfd: int) -> Death:
    info = bytearray(_PIDFD_INFO_SIZE)
    struct.pack_into("=Q", info, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:
        return UNKNOWN
    (mask,) = struct.unpack_from("=Q", info, 0)
    if not mask & _PIDFD_INFO_EXIT:
        return UNKNOWN
    (status,) = struct.unpack_from("=i", info, _PIDFD_INFO_SIZE - 4)
    return Death.of(status)


def _may_read(pid: int) -> bool:
    """The kernel shows field 52 as 0 unless we may ptrace the process: root and the same user may."""
    if os.geteuid() == 0:
        return True
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return False


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unnamed"


def adopt_orphans() -> None:
    """Orphans below us become our children instead of init's, so that none escapes (PR_SET_CHILD_SUBREAPER)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int) -> None:
    """Get this signal when the thread that forked us ends; a change of user clears it (PR_SET_PDEATHSIG)."""
    _prctl(_PR_SET_PDEATHSIG, number)


def name_process(name: str) -> None:
    """The name that `ps -o comm` shows, 15 bytes at most."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write(name[:15])


def _prctl(option: int, value: int) -> None:
    import ctypes  # which few of our processes need

    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")
