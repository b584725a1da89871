"""A process's title in /proc, and whether it outlives its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def set_title(title: str) -> None:
    """Write the title over this process's argument area and its short name, as setproctitle does.

    The area keeps its length; the rest is filled with zero bytes. Fields 48 and 49 of /proc/self/stat are its limits
    (proc(5)).
    """
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    start, end = int(fields[45]), int(fields[46])
    if start and end > start:
        text = title.encode()[: end - start - 1]
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)
    _prctl(_PR_SET_NAME, ctypes.c_char_p(title.encode()[:15]))


def die_with(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent dies; die now if it is already dead."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def outlive(parent: int, seconds: float) -> None:
    """Survive the parent's death, but only for this many seconds."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(min(5.0, seconds))
        time.sleep(seconds)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def start_time(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat: together with the pid it identifies one process. None if there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _prctl(option: int, value: object) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
