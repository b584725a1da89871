"""A child of this process that answers one question after another, a line each, and is kept for the next one.

What it queries may block forever (a wedged driver): its parent waits no longer than a deadline, and starts no second
child while the first one owes an answer, so that nothing piles up however often it is asked.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

END_S = 0.2


class KeptChild:
    """what: the subject of the sentences about it, as in `NVML did not respond within 5 s`."""

    def __init__(self, command: Sequence[str], what: str) -> None:
        self._command = list(command)
        self._what = what
        self._child: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._owing_since: float | None = None

    def ask(self, question: dict[str, Any]) -> None:
        """Send a question, unless the last one has no answer yet."""
        if self._owing_since is not None:
            self._line(0.0)  # a late answer is to another question
        if self._owing_since is not None:
            return
        if self._child is not None and self._child.poll() is not None:
            self.close()
        if self._child is None:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: the answer says so
            self._child.stdin.write(json.dumps(question).encode("ascii") + b"\n")
            self._child.stdin.flush()
        self._owing_since = time.monotonic()

    def answer(self, deadline_s: float) -> dict[str, Any]:
        """The child's answer; {'error': ...} if there was none in time (seconds from now), ended, or nonsense."""
        asked = self._owing_since
        line = self._line(deadline_s)
        if line is None and self._owing_since is not None and asked is not None:
            return {"error": f"{self._what} did not respond within {time.monotonic() - asked:.0f} s"}
        try:
            said = json.loads(line or b"")
        except ValueError:
            return {"error": f"the process that queries {self._what} exited without an answer"}
        return said if isinstance(said, dict) else {"error": f"the process that queries {self._what} sent no object"}

    def close(self) -> None:
        """End it; one that sleeps in the kernel can't be ended, and holds no descriptor of ours."""
        child, self._child, self._rest, self._owing_since = self._child, None, b"", None
        if child is None:
            return
        for stream in (child.stdin, child.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=END_S)
            return
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=END_S)

    def _line(self, deadline_s: float) -> bytes | None:
        """The next line; None where none came in time. b'' where the child has ended."""
        if self._child is None or self._child.stdout is None:
            return b""
        descriptor = self._child.stdout.fileno()
        end = time.monotonic() + deadline_s
        while b"\n" not in self._rest:
            if not select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            data = os.read(descriptor, 1 << 16)
            if not data:
                self.close()
                return b""
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        self._owing_since = None
        return line


def serve(reply: Callable[[dict[str, Any]], dict[str, Any]]) -> int:
    """The child: answer every line of stdin until it ends."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(reply(json.loads(line)), separators=(",", ":")) + "\n")
        sys.stdout.flush()
    return 0
