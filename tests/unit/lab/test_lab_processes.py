from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from orchestrator.lab.processes import Identity, wait_until


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
