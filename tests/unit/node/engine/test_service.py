"""What a probe asks: a path of the engine's own, or one token where the engine has none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from orchestrator.node.engine.service import Service
from orchestrator.node.engine.vitality import Probe
from orchestrator.protocol.staging import ProbeOrder

VLLM = {"alive": "/health", "generate": "/v1/completions", "completions": "/v1/completions", "models": "/v1/models"}
SGLANG = {**VLLM, "generate": "/health_generate"}


class Engine(ThreadingHTTPServer):
    """Remembers what it is asked; `hangs`: it says that it lives and generates nothing."""

    hangs = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def _answer(self, method: str) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(length)) if length else None
        assert isinstance(self.server, Engine)
        self.server.asked.append((method, self.path, body))
        generates = self.path in ("/v1/completions", "/health_generate")
        content = json.dumps({"data": [{"id": "served"}], "choices": [{"text": "x"}]}).encode()
        self.send_response(500 if generates and self.server.hangs else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def log_message(self, *_: object) -> None:
        """Nothing on the screen."""


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield served
        served.shutdown()


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize(
    ("endpoints", "asked"),
    [
        (VLLM, ("POST", "/v1/completions", {"model": "served", "prompt": "1", "max_tokens": 1})),
        (SGLANG, ("GET", "/health_generate", None)),
    ],
)
def test_once_it_serves_every_probe_generates(
    engine: Engine, endpoints: dict[str, str], asked: tuple[str, str, Any], hangs: bool
) -> None:
    """vLLM's /health is 200 while it hangs."""
    engine.hangs = hangs
    service = Service(engine.url, endpoints, None, "other", patience=ProbeOrder(answer_s=20.0, every_s=0.05))
    service.start()
    try:
        found = [result for result in (service.results.get(timeout=20) for _ in range(3)) if isinstance(result, Probe)]
    finally:
        service.stop()
    assert found[0].answered, "alive"
    assert found[-1].answered is not hangs
    assert asked in engine.asked and engine.asked[0] == ("GET", "/health", None)
