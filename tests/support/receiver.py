"""An HTTP server that records webhook requests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    """got: (path, document, monotonic seconds) of every POST. status, answer: what it answers."""

    url: str = ""
    status: int = 200
    answer: Any = None
    got: list[tuple[str, Any, float]] = field(default_factory=list)

    def documents(self) -> list[Any]:
        return [document for _, document, _ in self.got]


@contextmanager
def receiver() -> Iterator[Receiver]:
    """On a loopback port that the system chooses."""
    kept = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kept.got.append((self.path, json.loads(body), time.monotonic()))
            self.send_response(kept.status)
            text = b"" if kept.answer is None else json.dumps(kept.answer).encode()
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    kept.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield kept
    finally:
        server.shutdown()
        server.server_close()
