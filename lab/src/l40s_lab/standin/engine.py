"""The launcher's part of generation (SGLang's tokenizer manager): pass requests to rank 0, wait for their tokens."""

from __future__ import annotations

import enum
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator

from .answers import Question


class Status(enum.Enum):
    """The three states of SGLang's ServerStatus."""

    STARTING = "starting"
    UP = "up"
    UNHEALTHY = "unhealthy"


class Abandoned(Exception):
    """The client of a request has disconnected."""


class Engine:
    """Requests in flight, and the health that follows from their tokens."""

    def __init__(self, requests: socket.socket, tokens: socket.socket, pool: int) -> None:
        self.status = Status.STARTING
        self.draining = False
        self.pool = pool
        self.generated = 0
        self.prompted = 0
        self.finished = 0
        self.last_token_at = 0.0
        self._requests = requests
        self._tokens = tokens
        self._sending = threading.Lock()
        self._waiting: dict[str, queue.SimpleQueue[tuple[int, bool]]] = {}
        threading.Thread(target=self._listen, daemon=True, name="tokens").start()

    @property
    def in_flight(self) -> list[str]:
        """Ids of requests that wait for tokens."""
        return list(self._waiting)

    def stream(
        self, asked: Question, *, abandoned: Callable[[], bool] = lambda: False, quiet: bool = False
    ) -> Iterator[int]:
        """Pass on a request now; the iterator gives the number of tokens made so far, each time that it grows.

        Waits without a time limit: a rank that does not answer blocks the request, as in the real engine. Raises
        Abandoned when the client is gone. If the iterator is not read to its end, call `forget`.
        """
        inbox: queue.SimpleQueue[tuple[int, bool]] = queue.SimpleQueue()
        self._waiting[asked.rid] = inbox
        self._send({"rid": asked.rid, "tokens": len(asked.tokens), "prompt": asked.prompt_tokens, "quiet": quiet})
        return self._follow(asked, inbox, abandoned)

    def _follow(
        self, asked: Question, inbox: queue.SimpleQueue[tuple[int, bool]], abandoned: Callable[[], bool]
    ) -> Iterator[int]:
        done, finished = 0, False
        while not finished:
            try:
                done, finished = inbox.get(timeout=1.0)
            except queue.Empty:
                if abandoned():
                    raise Abandoned from None
                continue
            yield done
        self._waiting.pop(asked.rid, None)
        self.prompted += asked.prompt_tokens
        self.generated += done
        self.finished += 1

    def forget(self, rid: str) -> None:
        """Drop a request that is still running; does nothing for a finished one."""
        if self._waiting.pop(rid, None) is not None:
            self._send({"do": "abort", "rid": rid})

    def probe(self, asked: Question, timeout: float, poll: float) -> bool:
        """Whether any token of any request arrives in time, which is what /health checks (http_server.py)."""
        began = time.time()
        self._waiting[asked.rid] = queue.SimpleQueue()
        self._send({"rid": asked.rid, "tokens": 1, "prompt": 1, "quiet": True})
        try:
            while time.time() < began + timeout:
                time.sleep(poll)
                if self.last_token_at > began:
                    return True
            return False
        finally:
            self.forget(asked.rid)

    def shut_down(self) -> None:
        """Ask the ranks of all nodes to end."""
        self._send({"do": "shutdown"})

    def _send(self, document: dict[str, object]) -> None:
        with self._sending:
            try:
                self._requests.sendall(json.dumps(document).encode() + b"\n")
            except OSError:
                return

    def _listen(self) -> None:
        buffer = b""
        while more := self._tokens.recv(65536):
            *lines, buffer = (buffer + more).split(b"\n")
            self.last_token_at = time.time()
            for line in lines:
                for rid, done, finished in json.loads(line)["out"]:
                    inbox = self._waiting.get(rid)
                    if inbox is not None:
                        inbox.put((done, finished))
