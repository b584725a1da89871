"""Which process holds a lock, so that another one can tell whether it still runs.

A host's name says too little: containers on a host's network share it, and so do cloned machines. A process is known by
the boot of its machine, its PID namespace, its id there and its start time (proc(5), pid_namespaces(7)).
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from orchestrator.node import processes
from orchestrator.protocol.verbs import LockHolder


def this_process() -> dict[str, Any]:
    """The keys of a lock that name us; '' and 0 where this system does not tell."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "start": processes.start_of(os.getpid()),
        "boot": processes.boot_id(),
        "pid_namespace": _pid_namespace(),
    }


def has_ended(holder: LockHolder) -> bool:
    """True if this process can see that the holder has ended; False if it runs, or can't be seen from here."""
    ours, theirs = this_process(), {"boot": holder.boot, "pid_namespace": holder.pid_namespace}
    if holder.pid is None or holder.start is None or any(not ours[key] or ours[key] != theirs[key] for key in theirs):
        return False
    return not processes.alive(holder.pid, holder.start)


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
