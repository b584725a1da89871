"""Asks the engine over HTTP, in a thread of its own: is it healthy, and does it generate?

The engine may take 20 s over a probe or hang for ever; the agent's loop must not wait for it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

PROBE_EVERY_S = 0.2
"""Until the first healthy answer: a refused connection costs nothing."""
PROBE_LATER_S = 5.0
PROBE_TIMEOUT_S = 25.0
"""Above the engine's own 20 s (SGLANG_HEALTH_CHECK_TIMEOUT), so that its 503 is seen."""
CANARY_TIMEOUT_S = 300.0
"""The first generation may compile kernels."""


@dataclass(frozen=True)
class Health:
    """One probe's result. at: epoch seconds."""

    healthy: bool
    detail: str
    at: float


@dataclass(frozen=True)
class CanaryResult:
    """What the canary generation gave; refused says why it is not accepted, '' when it is."""

    text: str
    refused: str = ""


@dataclass
class Service:
    """Probes until healthy, runs the canary once, then keeps probing. `results` wakes the loop by `wake`."""

    url: str
    endpoints: Mapping[str, str]
    canary: Mapping[str, Any] | None
    model: str
    results: queue.SimpleQueue[Health | CanaryResult] = field(default_factory=queue.SimpleQueue)
    wake: int = -1
    _poke: int = -1
    _stop: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Begin probing."""
        self.wake, self._poke = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        threading.Thread(target=self._live, name="service", daemon=True).start()

    def stop(self) -> None:
        """Stop probing; a probe under way is forgotten."""
        self._stop.set()

    def take(self) -> list[Health | CanaryResult]:
        """Results since the last call."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.read(self.wake, 4096)
        found: list[Health | CanaryResult] = []
        while not self.results.empty():
            found.append(self.results.get())
        return found

    def _live(self) -> None:
        while not self._stop.is_set():
            health = self._probe("alive", "generate")
            self._tell(health)
            if health.healthy:
                break
            self._stop.wait(PROBE_EVERY_S)
        if not self._stop.is_set():
            self._tell(self._generate())
        while not self._stop.wait(PROBE_LATER_S):
            self._tell(self._probe("generate" if "generate" in self.endpoints else "alive"))

    def _tell(self, result: Health | CanaryResult) -> None:
        self.results.put(result)
        with contextlib.suppress(OSError):
            os.write(self._poke, b".")

    def _probe(self, *names: str) -> Health:
        for path in dict.fromkeys(self.endpoints[name] for name in names if name in self.endpoints):
            try:
                status, _ = self._ask("GET", path, None, PROBE_TIMEOUT_S)
            except (OSError, http.client.HTTPException) as error:
                return Health(False, f"{path}: {error}", time.time())
            if status != 200:
                return Health(False, f"{path}: HTTP {status}", time.time())
        return Health(True, "", time.time())

    def _generate(self) -> CanaryResult:
        if self.canary is None:
            return CanaryResult("")
        request = {
            "model": self._served_name(),
            "prompt": str(self.canary.get("prompt") or ""),
            "max_tokens": int(self.canary.get("max_tokens") or 16),
            "temperature": 0,
        }
        path = self.endpoints.get("completions", "/v1/completions")
        try:
            status, body = self._ask("POST", path, request, CANARY_TIMEOUT_S)
        except (OSError, http.client.HTTPException) as error:
            return CanaryResult("", f"the request failed: {error}")
        if status != 200:
            return CanaryResult("", f"HTTP {status}: {body[:300].decode('utf-8', 'replace')}")
        try:
            text = str(json.loads(body)["choices"][0]["text"])
        except (ValueError, KeyError, IndexError, TypeError):
            return CanaryResult("", f"no completion in the answer: {body[:300].decode('utf-8', 'replace')}")
        return CanaryResult(text, judge(text, [str(word) for word in self.canary.get("expect_any") or ()]))

    def _served_name(self) -> str:
        try:
            status, body = self._ask("GET", self.endpoints.get("models", "/v1/models"), None, PROBE_TIMEOUT_S)
            return str(json.loads(body)["data"][0]["id"]) if status == 200 else self.model
        except (OSError, http.client.HTTPException, ValueError, KeyError, IndexError, TypeError):
            return self.model

    def _ask(self, method: str, path: str, body: object, timeout: float) -> tuple[int, bytes]:
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=timeout)
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, {"Content-Type": "application/json"} if payload else {})
            answer = connection.getresponse()
            return answer.status, answer.read(1 << 20)
        finally:
            connection.close()


def judge(text: str, expect_any: list[str]) -> str:
    """'' where the text is accepted, else why not."""
    if not text.strip():
        return "the generated text is empty"
    if expect_any and not any(word in text for word in expect_any):
        return f"the generated text {text[:200]!r} holds none of {expect_any!r}"
    return ""
