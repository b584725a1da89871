"""A process of this application that tells lines of JSON, and is read without waiting.

What it does may block forever (a wedged driver, a dead disk), and SIGKILL does not end it before that returns (D of
proc(5)). So nobody waits for it longer than a deadline, and no second one is started beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.node import dispatch
from orchestrator.protocol.message import parsed

END_S = 0.2
"""For a child that was killed; one that takes longer is left behind."""


@dataclass
class LineChild:
    """words: its role (node/dispatch.py) and arguments."""

    words: Sequence[str]
    asked_at: float | None = None
    """When the question was sent that has no answer yet, monotonic seconds."""
    _child: subprocess.Popen[bytes] | None = None
    _killed: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """Those that SIGKILL has not ended yet."""
    _rest: bytes = b""

    @property
    def runs(self) -> bool:
        """It was started, and its end was neither ordered nor read."""
        return self._child is not None

    @property
    def helpers(self) -> set[int]:
        """Process ids of those that may still exist: none is one of the engine's."""
        return {child.pid for child in (self._child, *self._killed) if child is not None and child.poll() is None}

    def fileno(self) -> int:
        """Readable when it has told something; -1 where it does not run."""
        return self._child.stdout.fileno() if self._child is not None and self._child.stdout is not None else -1

    def ask(self, now: float) -> None:
        """Send a question, to a new child where none runs; nobody is asked while one that was killed has not ended. One
        that has ended says so when it is read. Raises OSError."""
        self._killed = [child for child in self._killed if child.poll() is None]
        if self._child is None and not self._killed:
            self._child = subprocess.Popen(
                dispatch.command(*self.words),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            os.set_blocking(self.fileno(), False)
        if self._child is not None and self._child.stdin is not None:
            self.asked_at = now
            with contextlib.suppress(OSError):
                self._child.stdin.write(b"?\n")
                self._child.stdin.flush()

    def read(self) -> list[dict[str, Any]] | None:
        """What it has told since the last time, less what a library printed; None where it does not run any more."""
        try:
            data = os.read(self.fileno(), 1 << 20) if self.runs else b""
        except BlockingIOError:
            return []
        if not data:
            self.close()
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        values = [value for line in lines if isinstance(value := parsed(line), dict)]
        if values:
            self.asked_at = None
        return values

    def close(self) -> None:
        """Kill it, and let go of it."""
        child, self._child, self._rest, self.asked_at = self._child, None, b"", None
        if child is None:
            return
        for pipe in (child.stdin, child.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        child.kill()
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            self._killed.append(child)


def serve(reply: Callable[[], dict[str, Any]]) -> int:
    """The child: answer every question until its parent is gone."""
    for _ in sys.stdin:
        sys.stdout.write(json.dumps(reply(), separators=(",", ":")) + "\n")
        sys.stdout.flush()
    return 0
