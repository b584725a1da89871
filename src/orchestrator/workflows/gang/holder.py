"""Which process holds a lock, so that another one can tell whether it still runs.

A host's name says too little: containers on a host's network share it, and so do cloned machines. A process is known by
the boot of its machine, its PID namespace, its id there and its start time (proc(5), pid_namespaces(7)).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.node import processes


def this_process() -> dict[str, Any]:
    """The keys of a lock that name us; '' and 0 where this system does not tell."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "start": processes.start_of(os.getpid()),
        "boot": processes.boot_id(),
        "pid_namespace": _pid_namespace(),
    }


def has_ended(holder: Mapping[str, Any]) -> bool:
    """True where this process can see that the holder runs no more; False where it runs, or can't be seen from here."""
    ours, pid, start = this_process(), holder.get("pid"), holder.get("start")
    seen_from_here = all(ours[key] and holder.get(key) == ours[key] for key in ("boot", "pid_namespace"))
    return seen_from_here and isinstance(pid, int) and isinstance(start, int) and not processes.alive(pid, start)


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
