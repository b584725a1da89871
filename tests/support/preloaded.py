"""`l40s-deploy` commands as forks of a process that has already done its imports.

Each is a process with its own arguments, environment, files and exit, as from a shell; this only saves the half
second of CPU time that Python needs for the imports of each. `python -m tests.support.preloaded` is the server side;
it ends with us, and its commands with it. A command also ends with the test that started it. Commands that need a
terminal, input or a session of their own are started as `L40S_DEPLOY`.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.waiting import slack

L40S_DEPLOY = [sys.executable, "-m", "orchestrator.cli.main"]
"""The real command, without preloading."""
OTHERS = (
    "l40s_lab.breaking.state",
    "l40s_lab.command",
    "l40s_lab.life.down",
    "l40s_lab.life.status",
    "l40s_lab.life.up",
    "paramiko",
    "rich.live",
    "rich.table",
    "rich.text",
)
"""Preloaded beside every module of the product: what commands import on first use."""
ANSWER_S = 30.0


class Preloaded:
    """Our side: starts commands, learns when they end. For one thread."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.preloaded"],
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._rest = b""
        self._ended: dict[int, int] = {}
        self._began: list[int] = []
        self.running: dict[int, Running] = {}
        """What was started and not heard to have ended, by process id."""

    @property
    def alive(self) -> bool:
        """Whether this process owns it and its server lives: a fork of us needs its own."""
        return self.owner == os.getpid() and self._process.poll() is None

    def start(self, words: Sequence[str], out: Path, err: Path, environment: Mapping[str, str]) -> Running:
        """Start a command whose output goes into these files."""
        assert self._process.stdin is not None
        order = {"words": list(words), "out": str(out), "err": str(err), "cwd": str(Path.cwd())}
        self._process.stdin.write(json.dumps({**order, "environment": dict(environment)}).encode() + b"\n")
        self._process.stdin.flush()
        end = time.monotonic() + ANSWER_S * slack()
        while not self._began:
            self._hear(end)
        running = Running(self, self._began.pop(0))
        self.running[running.pid] = running
        return running

    def run(
        self, words: Sequence[str], environment: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. Raises TimeoutExpired, having ended it, as at whatever else ends the test."""
        with tempfile.TemporaryDirectory(prefix="preloaded-") as folder:
            out, err = Path(folder) / "out", Path(folder) / "err"
            running = self.start(words, out, err, environment)
            try:
                status = running.wait(timeout)
            except BaseException:
                running.end()
                raise
            return subprocess.CompletedProcess(list(words), status, *map(_read, (out, err)))

    def close(self) -> None:
        """End the server, and what it started."""
        if self.alive:
            for running in [*self.running.values()]:
                running.kill()
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._process.wait(10)

    def ended(self, pid: int, until: float) -> int | None:
        """A command's exit status, None if it still runs at that time (monotonic)."""
        while pid not in self._ended:
            if not self._hear(until):
                return None
        return self._ended[pid]

    def _hear(self, until: float) -> bool:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
            return False
        data = os.read(self._process.stdout.fileno(), 1 << 16)
        assert data, "the process that starts commands has ended"
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "began" in said:
                self._ended.pop(said["began"], None)  # process ids are reused
                self._began.append(said["began"])
            else:
                self._ended[said["ended"]] = said["status"]
                self.running.pop(said["ended"], None)
        return True


@dataclass
class Running:
    """One command, with the parts of Popen's interface that tests use."""

    of: Preloaded
    pid: int
    returncode: int | None = field(default=None)

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.of.ended(self.pid, 0.0)
        return self.returncode

    def wait(self, timeout: float) -> int:
        if self.returncode is None:
            self.returncode = self.of.ended(self.pid, time.monotonic() + timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def end(self) -> None:
        """Kill it, stopped or not, and wait until it has ended."""
        self.kill()
        self.wait(ANSWER_S * slack())


_ours: list[Preloaded] = []


def preloaded() -> Preloaded:
    """This process's own server, started on first use."""
    if not _ours or not _ours[0].alive:
        _ours[:] = [Preloaded()]
        atexit.register(_ours[0].close)
    return _ours[0]


@contextmanager
def ended_afterwards() -> Iterator[None]:
    """What a test starts ends with it, also where pytest-timeout ends the test: what goes on running would hold its
    gang's lock, and fail all that comes after."""
    before = set(_ours[0].running) if _ours else set()
    try:
        yield
    finally:
        for running in [running for ours in _ours if ours.alive for running in ours.running.values()]:
            if running.pid not in before:
                running.end()


def run(words: Sequence[str], environment: Mapping[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run `l40s-deploy WORDS` to its end: preloaded if this thread may use the server."""
    if threading.current_thread() is threading.main_thread():
        return preloaded().run(words, environment, timeout)
    return subprocess.run(
        [*L40S_DEPLOY, *words],
        env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


def _read(path: Path) -> str:
    return path.read_text("utf-8", errors="replace")


def serve() -> None:
    """The server: reads one order per line; reports what began and what ended."""
    import orchestrator

    product = (module.name for module in pkgutil.walk_packages(orchestrator.__path__, "orchestrator."))
    for name in [*product, *OTHERS]:
        importlib.import_module(name)
    from orchestrator.doctor.rules.support.registry import all_rules

    all_rules()
    gc.collect()
    gc.freeze()  # no command's look for garbage goes through what all of them share
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    rest = b""
    commands: set[int] = set()
    while True:
        ready, _, _ = select.select([0, reading], [], [])
        if reading in ready:
            os.read(reading, 4096)
            _reap(commands)
        if 0 in ready:
            data = os.read(0, 1 << 16)
            if not data:
                return _end(commands)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                commands.add(pid := _fork(json.loads(line)))
                _tell(began=pid)


def _end(commands: Iterable[int]) -> None:
    """The process that started them has ended."""
    for pid in commands:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _reap(commands: set[int]) -> None:
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            commands.discard(pid)
            _tell(ended=pid, status=os.waitstatus_to_exitcode(status))


def _tell(**said: Any) -> None:
    os.write(1, json.dumps(said).encode() + b"\n")


def _fork(order: Mapping[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        modes = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(order["out"], modes, 0o644), 1)
        os.dup2(1 if order["err"] == order["out"] else os.open(order["err"], modes, 0o644), 2)
        os.closerange(3, 256)
        os.chdir(order["cwd"])
        os.environ.clear()
        os.environ.update(order["environment"])
        status = _command(order["words"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _command(words: Sequence[str]) -> int:
    from orchestrator.cli.main import main

    sys.argv = ["l40s-deploy", *words]
    try:
        return main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1


if __name__ == "__main__":
    serve()
