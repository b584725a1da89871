"""`l40s-deploy` commands as forks of a process that has made its imports already.

Each is a process of its own with its own arguments, files and end, as from a shell; only the half second of a core that
Python needs to import everything is not spent a thousand times. `python -m tests.support.preloaded` is the far side.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VERBS = ("up", "down", "status", "restart", "guard")
"""Whose imports are made; any other command makes its own after the fork."""
LAZY = ("orchestrator.cli.gangs", "orchestrator.cli.live", "rich.console", "rich.live", "rich.table", "rich.text")
"""What these import when they first need it."""
ANSWER_S = 30.0


class Preloaded:
    """Our side: starts commands, hears of their ends. For one thread."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.preloaded"],
            env=dict(environment),
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._rest = b""
        self._ended: dict[int, int] = {}
        self._began: list[int] = []

    def start(self, words: Sequence[str], out: Path, err: Path) -> Running:
        """A command whose output goes into these files."""
        assert self._process.stdin is not None
        order = {"words": list(words), "out": str(out), "err": str(err)}
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        end = time.monotonic() + ANSWER_S
        while not self._began:
            self._hear(end)
        return Running(self, self._began.pop(0))

    def run(self, words: Sequence[str], folder: Path, timeout: float) -> subprocess.CompletedProcess[str]:
        """A command to its end. folder: where its output may lie meanwhile. Raises TimeoutExpired, having ended it."""
        out, err = folder / "preloaded.out", folder / "preloaded.err"
        running = self.start(words, out, err)
        try:
            status = running.wait(timeout)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait(ANSWER_S)
            raise
        said = (out.read_text(errors="replace"), err.read_text(errors="replace"))
        return subprocess.CompletedProcess(list(words), status, *said)

    def close(self) -> None:
        """End the far side."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._process.wait(10)

    def ended(self, pid: int, until: float) -> int | None:
        """A command's exit status, None where it still runs at that moment (monotonic)."""
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
                self._ended.pop(said["began"], None)  # process ids come again
                self._began.append(said["began"])
            else:
                self._ended[said["ended"]] = said["status"]
        return True


@dataclass
class Running:
    """One command; what Popen has of it."""

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


def serve() -> None:
    """The far side: an order a line; tells what began and what ended."""
    for name in [f"orchestrator.cli.{verb}" for verb in VERBS] + list(LAZY):
        importlib.import_module(name)
    from orchestrator.rules.support.registry import all_rules

    all_rules()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    rest = b""
    while True:
        ready, _, _ = select.select([0, reading], [], [])
        if reading in ready:
            os.read(reading, 4096)
            _reap()
        if 0 in ready:
            data = os.read(0, 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                _tell(began=_fork(json.loads(line)))


def _reap() -> None:
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
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
