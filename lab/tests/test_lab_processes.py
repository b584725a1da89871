from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from l40s_lab.processes import Identity, wait_until


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def test_only_the_very_process_is_killed() -> None:
    process = sleeper()
    identity = Identity.of(process.pid)
    assert identity is not None
    for stranger in (
        replace(identity, start=identity.start + 1),
        replace(identity, boot="another boot"),
    ):
        assert not stranger.alive
        stranger.kill()
    assert process.poll() is None, "a number alone is not the process"
    assert identity.end(deadline_s=10)
    process.wait()


def test_a_zombie_is_not_alive() -> None:
    process = sleeper()
    identity = Identity.of(process.pid)
    assert identity is not None
    process.kill()
    assert wait_until(lambda: not identity.alive, deadline_s=10)
    assert Identity.of(process.pid) is None
    process.wait()


def test_waiting_ends_at_its_deadline() -> None:
    assert not wait_until(lambda: False, deadline_s=0.02)


def test_we_ourselves_are_alive() -> None:
    identity = Identity.of(os.getpid())
    assert identity is not None
    assert identity.alive


@pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace of one's own needs root")
def test_pid_1_ends_though_a_shell_into_its_namespace_was_stopped_with_what_it_ran() -> None:
    """As after `lab break NODE freeze` under a `lab exec`."""
    outside = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "echo; sleep 60; :"], stdout=subprocess.PIPE
    )
    assert outside.stdout is not None and outside.stdout.readline() == b"\n"
    (first,) = children(outside.pid)
    shell = subprocess.Popen(["nsenter", "-t", str(first), "-p", "--", "sleep", "60"])
    try:
        assert wait_until(lambda: bool(children(shell.pid)), deadline_s=10)
        (inside,) = children(shell.pid)
        os.kill(inside, signal.SIGSTOP)
        assert wait_until(lambda: state(shell.pid) == "T", deadline_s=10), state(shell.pid)
        identity = Identity.of(first)
        assert identity is not None and identity.end(deadline_s=10)
    finally:
        shell.send_signal(signal.SIGCONT)
        for process in (shell, outside):
            process.kill()
            process.wait(10)
        outside.stdout.close()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
