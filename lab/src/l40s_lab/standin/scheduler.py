"""Rank 0's work while serving: requests from the launcher, one token per step through all ranks, tokens out."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from .group import Leader, Peer, Stopped
from .log import Log
from .settings import Settings

_DECODE_LOG_INTERVAL = 40
"""Steps between two `Decode batch` lines (--decode-log-interval's default)."""


@dataclass
class _Running:
    """Tokens of a request in work: wanted, and done."""

    wanted: int
    done: int = 0


class Service:
    """Requests arrive as JSON documents, one per line, on one socket; tokens leave the same way on the other."""

    def __init__(self, requests: socket.socket, tokens: socket.socket) -> None:
        self.requests = requests
        self._tokens = tokens
        self._buffer = b""

    def send(self, document: object) -> None:
        self._tokens.sendall(json.dumps(document).encode() + b"\n")

    def receive(self) -> list[dict[str, object]] | None:
        """Documents that have arrived; None if the launcher is gone."""
        more = self.requests.recv(65536)
        if not more:
            return None
        *lines, self._buffer = (self._buffer + more).split(b"\n")
        return [json.loads(line) for line in lines]


class Scheduler:
    """All running requests share each step, as in continuous batching; the others wait, first come first served."""

    def __init__(
        self, settings: Settings, log: Log, group: Leader, service: Service, pool: int, on_step: Callable[[], None]
    ) -> None:
        self._version = settings.version
        self._graphs = "cpu graph: False", "cpu graph: False"
        if settings.device == "cuda":
            self._graphs = "cuda graph: False", f"cuda graph: {settings.graphs}"
        self._step_s = settings.step_s
        self._log = log
        self._group = group
        self._service = service
        self._pool = max(pool, 1)
        self._on_step = on_step
        self._most = settings.max_running
        self._running: dict[str, _Running] = {}
        self._queued: dict[str, _Running] = {}
        self._step = 0
        self._stopping = False
        self._logged = (0, time.monotonic())
        group.selector.register(service.requests, selectors.EVENT_READ, self._service)

    def run(self) -> None:
        """Serve until the launcher asks for a shutdown (Stopped). Without a launcher, do nothing."""
        while True:
            self._take(0 if self._running else None)
            if self._running:
                self._make_token()

    def _take(self, timeout: float | None) -> None:
        """Requests, aborts and the shutdown; also peers' deaths if they are watched."""
        for key, _ in self._group.selector.select(timeout):
            if isinstance(key.data, Peer):
                self._group.hear(key.data)
                continue
            documents = self._service.receive()
            if documents is None:
                self._group.selector.unregister(self._service.requests)
            for document in documents or ():
                self._handle(document)

    def _handle(self, document: dict[str, object]) -> None:
        if document.get("do") == "shutdown":
            self._group.stop()
            raise Stopped
        rid = str(document["rid"])
        if document.get("do") == "abort":
            self._running.pop(rid, None)
            self._queued.pop(rid, None)
            self._admit()
            return
        self._queued[rid] = _Running(int(str(document["tokens"])))
        self._admit()
        if not document.get("quiet"):
            self._log.line(
                self._version.prefill.format(
                    new=1, tokens=document["prompt"], running=len(self._running) - 1, rate=0.0, graph=self._graphs[0]
                )
            )

    def _admit(self) -> None:
        """As many of the waiting ones as may run."""
        while self._queued and (self._most is None or len(self._running) < self._most):
            rid = next(iter(self._queued))
            self._running[rid] = self._queued.pop(rid)

    def _make_token(self) -> None:
        self._step += 1
        self._on_step()
        time.sleep(self._step_s)
        # Nothing else is read during a step: a rank that never answers blocks everything, as in a collective.
        self._group.selector.unregister(self._service.requests)
        self._group.step(self._step)
        self._group.selector.register(self._service.requests, selectors.EVENT_READ, self._service)
        out: list[tuple[str, int, bool]] = []
        for rid, running in list(self._running.items()):
            running.done += 1
            finished = running.done >= running.wanted
            out.append((rid, running.done, finished))
            if finished:
                del self._running[rid]
        self._admit()
        self._service.send({"out": out})
        self._tell_rate(len(out))

    def _tell_rate(self, count: int) -> None:
        made, since = self._logged[0] + count, self._logged[1]
        if self._step % _DECODE_LOG_INTERVAL:
            self._logged = (made, since)
            return
        now = time.monotonic()
        tokens = sum(running.done for running in self._running.values())
        self._log.line(
            self._version.decode.format(
                running=count,
                tokens=tokens,
                usage=tokens / self._pool,
                rate=made / max(now - since, 1e-3),
                graph=self._graphs[1],
            )
        )
        self._logged = (0, now)
