"""How a process died that is not our child, if the kernel still shows it."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
from dataclasses import dataclass

from orchestrator.node import processes

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


UNKNOWN = Death()


def death_of(pid: int, start: int, pidfd: int) -> Death:
    """Ask the zombie's stat first, then the pidfd (which still knows after the parent has reaped the process)."""
    process = processes.read(pid)
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
