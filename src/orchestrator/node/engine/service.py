"""Queries the engine over HTTP, in a thread of its own: is it healthy, and does it generate?

The engine may take 20 s to answer a probe, or hang forever; the agent's loop must not wait for it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.node.agent import clock
from orchestrator.node.engine.vitality import Probe
from orchestrator.node.network import http_connection
from orchestrator.protocol.staging import Canary, ProbeOrder

PROBE_EVERY_S = 0.2
"""Pause until the first healthy answer; a refused connection costs nothing."""
AGAIN_S = 0.5
"""Pause after a probe without an answer: the next one must not wait long."""
GRACE_S = 5.0
"""Added to the engine's own limit for a probe, so that we see its 503."""
ASK_S = 5.0
"""Limit for requests that generate nothing."""
MOST_BYTES = 4 << 20
"""Longest answer; metrics of 32 ranks are some hundred KB."""
CANARY_TIMEOUT_S = 300.0
"""The first generation may compile kernels."""


@dataclass(frozen=True)
class CanaryResult:
    """Result of the canary generation. refused: why it is not accepted, '' if it is."""

    text: str
    refused: str = ""


@dataclass
class Service:
    """Probes until healthy, runs the canary once, then keeps probing. New `results` wake the loop through `wake`."""

    url: str
    endpoints: Mapping[str, str]
    canary: Canary | None
    model: str
    patience: ProbeOrder = field(default_factory=ProbeOrder)
    authorization: str = field(default="", repr=False)
    """Header that the engine requires, '' for none."""
    certificate: str = ""
    """Path of the one certificate that an https URL accepts."""
    counters: str = ""
    """Pattern of the metrics lines that change only with work; '' if the engine has none."""
    results: queue.SimpleQueue[Probe | CanaryResult] = field(default_factory=queue.SimpleQueue)
    wake: int = -1
    _poke: int = -1
    _stop: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Start probing."""
        self.wake, self._poke = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        threading.Thread(target=self._live, name="service", daemon=True).start()

    def stop(self) -> None:
        """Stop probing; a running probe is discarded."""
        self._stop.set()

    def take(self) -> list[Probe | CanaryResult]:
        """Results since the last call."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.read(self.wake, 4096)
        return [self.results.get() for _ in range(self.results.qsize())]

    def _live(self) -> None:
        while not self._stop.is_set():
            probe = self._probe("alive")  # the canary will show that it generates
            self._tell(probe)
            if probe.answered:
                break
            self._stop.wait(PROBE_EVERY_S)
        if not self._stop.is_set():
            self._tell(self._generate())
        pause = self.patience.every_s
        while not self._stop.wait(pause):
            probe = self._probe("generate" if "generate" in self.endpoints else "alive", counters=self.counters)
            self._tell(probe)
            pause = self.patience.every_s if probe.answered else min(AGAIN_S, self.patience.every_s)

    def _tell(self, result: Probe | CanaryResult) -> None:
        self.results.put(result)
        with contextlib.suppress(OSError):
            os.write(self._poke, b".")

    def _probe(self, name: str, *, counters: str = "") -> Probe:
        began = time.monotonic()
        wrong = self._refusal(self.endpoints[name]) if name in self.endpoints else ""
        ended = time.monotonic()
        moved = self._read_counters(counters) if wrong and counters else ""
        return Probe(not wrong, began, ended, wrong, moved, at=clock.now())

    def _refusal(self, path: str) -> str:
        """'' if the endpoint answered 200, else what went wrong. An engine that has no path of its own for a generating
        probe is asked for one token."""
        token = path == self.endpoints.get("completions")
        body = {"model": self._served_name(), "prompt": "1", "max_tokens": 1} if token else None
        try:
            status, _ = self._ask("POST" if token else "GET", path, body, self.patience.answer_s + GRACE_S)
        except (OSError, http.client.HTTPException) as error:
            return f"{path}: {error}"
        return "" if status == 200 else f"{path}: HTTP {status}"

    def _read_counters(self, pattern: str) -> str:
        """The matching lines, unchanged; '' if the engine gives none."""
        if "metrics" not in self.endpoints:
            return ""
        try:
            status, body = self._ask("GET", self.endpoints["metrics"], None, ASK_S)
        except (OSError, http.client.HTTPException):
            return ""
        matches = re.finditer(pattern, body.decode("utf-8", "replace"), re.M) if status == 200 else ()
        return "\n".join(match.group() for match in matches)

    def _generate(self) -> CanaryResult:
        order = self.canary
        if order is None:
            return CanaryResult("")
        words = {"prompt": order.prompt, "max_tokens": order.max_tokens, "temperature": 0}
        path = self.endpoints.get("completions", "/v1/completions")
        try:
            status, body = self._ask("POST", path, {"model": self._served_name(), **words}, CANARY_TIMEOUT_S)
        except (OSError, http.client.HTTPException) as error:
            return CanaryResult("", f"the request failed: {error}")
        if status != 200:
            return CanaryResult("", f"HTTP {status}: {body[:300].decode('utf-8', 'replace')}")
        try:
            text = str(json.loads(body)["choices"][0]["text"])
        except (ValueError, LookupError, TypeError, RecursionError):
            return CanaryResult("", f"the answer contains no completion: {body[:300].decode('utf-8', 'replace')}")
        return CanaryResult(text, judge(text, order.expect_any))

    def _served_name(self) -> str:
        try:
            path = self.endpoints.get("models", "/v1/models")
            status, body = self._ask("GET", path, None, self.patience.answer_s + GRACE_S)
            return str(json.loads(body)["data"][0]["id"]) if status == 200 else self.model
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, RecursionError):
            return self.model

    def _ask(self, method: str, path: str, body: object, timeout: float) -> tuple[int, bytes]:
        payload = None if body is None else json.dumps(body)
        headers = {"Authorization": self.authorization} if self.authorization else {}
        if payload:
            headers["Content-Type"] = "application/json"
        url = self.url.rstrip("/") + path
        return http_connection.ask(
            method, url, payload, headers, timeout, certificate=self.certificate, longest=MOST_BYTES
        )


def judge(text: str, expect_any: Sequence[str]) -> str:
    """'' if the text is accepted, else the reason."""
    if not text.strip():
        return "the generated text is empty"
    if expect_any and not any(word in text for word in expect_any):
        return f"the generated text {text[:200]!r} contains none of {list(expect_any)!r}"
    return ""
