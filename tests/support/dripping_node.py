"""Every verb beside a node whose answers drip, so that each question takes all the time that it may take.

`drips` makes this process's second node such a one, for tests/support/broken_homes.py. Nobody waits for it: each
question writes how long it would have lasted.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

from tests.fuzz import answers

from orchestrator.model.inventory import NodeSpec
from orchestrator.protocol.errors import Unreachable
from orchestrator.remote import allowance, fleet
from orchestrator.remote.session import CommandResult

DRIPS = "node1"
_would_wait = threading.local()
"""Seconds that this thread would have waited."""
_WOULD_TAKE = re.compile(r"^question that drips: ([0-9.]+) s$", re.MULTILINE)


def make_ready() -> None:
    """Make what all of these processes need once."""
    answers.every_verb()


def drips() -> None:
    """From now on, in this process."""
    sound = {name: verb.sound for name, verb in answers.every_verb().items()}

    def connect(spec: NodeSpec, _: float) -> Any:
        return Dripping(spec, sound) if spec.name == DRIPS else answers.Node(spec, sound)

    mock.patch.object(fleet, "connect", connect).start()
    mock.patch.object(allowance, "_now", lambda: time.monotonic() + getattr(_would_wait, "seconds", 0.0)).start()


def would_take_s(output: str) -> float:
    """Seconds that a verb's questions would have lasted, one after the other."""
    return sum(map(float, _WOULD_TAKE.findall(output)))


class Dripping(answers.Node):
    """A session whose answers never end by themselves."""

    def run(self, command: Any, *, stdin: bytes = b"", deadline_s: float, become: bool | None = None) -> CommandResult:
        raise self._late(deadline_s)

    def stream(
        self, command: Any, *, stdin: bytes = b"", deadline_s: float | None, quiet_s: float | None = None
    ) -> Iterator[bytes]:
        raise self._late(deadline_s if deadline_s is not None else quiet_s or 0.0)

    def _late(self, limit_s: float) -> Unreachable:
        _would_wait.seconds = getattr(_would_wait, "seconds", 0.0) + limit_s
        os.write(2, f"\nquestion that drips: {limit_s:.3f} s\n".encode())
        self.alive = False
        return Unreachable(f"did not end within {limit_s:g} s", where=self.spec.name, fix="look at it")
