"""A program beside the engine, or in its place. It runs as the engine's user and is killed when we exit."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import signal
import subprocess
import time

from orchestrator.node import kernel, supervision
from orchestrator.node.agent.run import Run
from orchestrator.node.engine.guardian import change_user

KILL_FOR_S = 10.0


def owner(run: Run) -> tuple[int, int] | None:
    """User and group of the files that the program writes; None for our own."""
    if run.engine_user is None or os.geteuid() != 0:
        return None
    user = pwd.getpwnam(run.engine_user)
    return user.pw_uid, user.pw_gid


def become(run: Run, parent: int) -> None:
    """In the child, before exec: become the engine's user, then `die_with`, which a change of user would undo."""
    change_user(run)
    die_with(parent)


def die_with(parent: int) -> None:
    """In the child of a program that runs as our own user: a new session, and death with the parent."""
    os.setsid()
    kernel.die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def end(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and all that it started. We must be the parent of orphans: `kernel.adopt_orphans`."""
    deadline = time.monotonic() + KILL_FOR_S
    while time.monotonic() < deadline:
        child.poll()
        below = [one for one in supervision.descendants([os.getpid()], supervision.everything()) if not one.gone]
        if not below:
            break
        for process in below:
            supervision.send(process.pid, process.start, signal.SIGKILL)
        time.sleep(0.02)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(1.0)
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            stream.close()


def last_words(log: str) -> str:
    """The last line that is not blank."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", log) if line.strip()]
    return (lines[-1] if lines else "it printed nothing")[:300]
