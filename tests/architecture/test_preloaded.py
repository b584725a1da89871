"""A command that a test started ends with it, whatever ends the test: it would hold its gang's lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support import preloaded
from tests.support.preloaded import Running
from tests.support.waiting import until

ENDLESS = ["why", "--log"]
"""Of a pipe that nobody writes into."""


class OutOfTimeError(BaseException):
    """As pytest-timeout raises in the midst of a test, no Exception."""


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "engine.log")
    return tmp_path / "engine.log"


def test_the_command_that_a_test_waits_for_ends_with_the_wait(pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited_for: list[Running] = []
    wait = Running.wait

    def interrupted(self: Running, timeout: float) -> int:
        if self in waited_for:
            return wait(self, timeout)
        waited_for.append(self)
        assert self.poll() is None
        raise OutOfTimeError

    monkeypatch.setattr(Running, "wait", interrupted)
    with pytest.raises(OutOfTimeError):
        preloaded.run([*ENDLESS, str(pipe)], os.environ, 60.0)
    (command,) = waited_for
    assert command.poll() == -signal.SIGKILL


def test_a_command_in_the_background_ends_with_its_test_and_an_earlier_one_goes_on(pipe: Path) -> None:
    def begun() -> Running:
        return preloaded.preloaded().start([*ENDLESS, str(pipe)], pipe.parent / "out", pipe.parent / "out", os.environ)

    earlier = begun()
    with suppress(OutOfTimeError), preloaded.ended_afterwards():
        command = begun()
        command.send_signal(signal.SIGSTOP)
        assert command.poll() is None
        raise OutOfTimeError
    assert command.poll() == -signal.SIGKILL and earlier.poll() is None
    earlier.end()


WORKER = """
import os, sys
from pathlib import Path
from tests.support.preloaded import preloaded

pipe = Path(sys.argv[1])
running = preloaded().start(["why", "--log", str(pipe)], pipe.parent / "out", pipe.parent / "out", os.environ)
print(running.pid, flush=True)
how = sys.argv[2]
os._exit(1) if how == "killed" else sys.exit()
"""


@pytest.mark.parametrize("how", ["killed", "ended"])
def test_commands_end_with_the_process_that_started_them(pipe: Path, how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(pipe), how],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    ended = _ended(int(done.stdout))
    until(ended, 60.0, "the command has ended")


def _ended(pid: int) -> Callable[[], bool]:
    return lambda: not _reads_a_pipe(pid)


def _reads_a_pipe(pid: int) -> bool:
    """Whether it is still that command: process ids are used again."""
    with suppress(OSError):
        return b"preloaded" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
