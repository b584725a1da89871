"""Queries NCCL's RAS, in a thread of its own, when the engine makes no progress: the agent's loop never waits for it.

The protocol is lines of text (NCCL src/ras/client_support.cc): SET FORMAT json, since 2.28.7, TIMEOUT, STATUS; the
connection ends after the answer. All processes of a node listen on the same port
(SO_REUSEPORT), including stopped ones that never answer, so a connection without an answer is retried.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.node.engine.ras_words import RasVerdict, judge, read
from orchestrator.node.network.exchange import Exchange

FIRST_WORD_S = 1.0
ANSWER_S = 12.0
"""RAS gives up on processes that do not answer within TIMEOUT and 5 s more."""
TIMEOUT_S = 2
TRIES = 8
MOST_BYTES = 8 << 20
"""32 ranks in ten communicators are some 200 KiB of JSON."""
LONGEST_LINE = 4096
APART_S = 2.0
AGAIN_S = 30.0


def status(address: str) -> str:
    """RAS's answer, unchanged. Raises OSError if no answer comes in time, ValueError if the address or the answer is
    invalid."""
    host, _, port = address.rpartition(":")
    failure: OSError = OSError("no answer")
    for _ in range(TRIES):
        try:
            with socket.create_connection((host.strip("[]"), int(port)), FIRST_WORD_S) as connection:
                return _asked(connection)
        except OSError as error:  # noqa: PERF203 - one try takes a second
            failure = error
    raise failure


def _asked(connection: socket.socket) -> str:
    for command in (b"SET FORMAT json\n", b"TIMEOUT %d\n" % TIMEOUT_S):
        connection.sendall(command)
        if (answer := _line(connection)) != b"OK":
            raise ValueError(f"it answered {answer[:100]!r}")
    connection.sendall(b"STATUS\n")
    told = Exchange(ANSWER_S, 2 * MOST_BYTES).makefile(connection).read(MOST_BYTES + 1)
    if len(told) > MOST_BYTES:
        raise ValueError(f"its answer is longer than {MOST_BYTES >> 20} MiB")
    return told.decode("utf-8", "replace")


def _line(connection: socket.socket) -> bytes:
    """One short answer; nothing follows it before the next command."""
    line = Exchange(FIRST_WORD_S).makefile(connection).readline(LONGEST_LINE)
    if not line.endswith(b"\n"):
        raise OSError("it closed the connection")
    return line.strip()


@dataclass
class Inquiry:
    """Queries RAS while the engine makes no progress; read `told`.

    address: of RAS, '' where the plan has none: NCCL answers in JSON from 2.28.7 on
    nodes:   names of the gang's nodes by address
    """

    address: str
    nodes: Mapping[str, str] = field(default_factory=dict)
    verdict: RasVerdict | None = None
    """The newest answer; None before the first one."""
    _asked_at: float = float("-inf")
    _thread: threading.Thread | None = None

    def follow(self, now: float, *, still: bool) -> None:
        """Query when it is due; discard the answers if the engine makes progress again."""
        asking = self._thread is not None and self._thread.is_alive()
        if not still and not asking:
            self.verdict, self._asked_at = None, float("-inf")
        elif still and not asking and now - self._asked_at >= AGAIN_S:
            self._asked_at = now
            self._thread = threading.Thread(target=self._ask, name="ras", daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread to be had: it is asked again later
                self._thread.start()

    def _ask(self) -> None:
        if not self.address:
            missing = "NCCL's RAS, which could name the rank that the others wait for, is off or missing in this NCCL"
            self.verdict = RasVerdict(missing)
            return
        try:
            first = read(status(self.address))
            time.sleep(APART_S)
            self.verdict = judge(first, read(status(self.address)), self.nodes)
        except (OSError, ValueError, RecursionError) as error:
            self.verdict = RasVerdict(f"NCCL RAS at {self.address} could not be asked: {error}")
