"""HTTP as both APIs need it, and the API of the nodes that are not the leader, which always reports good health."""

from __future__ import annotations

import json
import os
import socket
import socketserver
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .log import Log, raw


class Server(ThreadingHTTPServer):
    """One thread per connection."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)

    def server_bind(self) -> None:
        # Without HTTPServer's look-up of the host name, which may wait for a name server.
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects in the middle is not an error."""


class Handler(BaseHTTPRequestHandler):
    """Common to both APIs: keep-alive, JSON bodies, SGLang's access log."""

    protocol_version = "HTTP/1.1"
    server_version = "l40s-deploy-stand-in"
    disable_nagle_algorithm = True
    log = Log()

    def log_message(self, format: str, *args: Any) -> None:
        """Does nothing: log_request writes the access log."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:  # noqa: ARG002
        """One line on standard output, like uvicorn's access log."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        client = f"{self.client_address[0]}:{self.client_address[1]}"
        status = int(code)
        raw(f'[{stamp}] INFO:     {client} - "{self.requestline}" {status} {self.responses[status][0]}\n', descriptor=1)

    def answer(self, status: int, body: Any = None, kind: str = "application/json") -> None:
        data = b"" if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def path_only(self) -> str:
        return self.path.partition("?")[0]


class WorkerHandler(Handler):
    """A node that is not the leader: always 200 (srt/utils, launch_dummy_health_check_server)."""

    paths: tuple[str, ...] = ("/health", "/health_generate", "/ping")
    access_log = False

    def do_GET(self) -> None:
        self.answer(200) if self.path_only() in self.paths else self.answer(404, {"detail": "Not Found"})

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:  # noqa: ARG002
        """Silent in 0.5: its log level is warning. In 0.4.4 uvicorn's own format."""
        if self.access_log:
            client, status = f"{self.client_address[0]}:{self.client_address[1]}", int(code)
            raw(f'INFO:     {client} - "{self.requestline}" {status} {self.responses[status][0]}\n', descriptor=1)


def uvicorn_lines(host: str, port: int) -> tuple[str, ...]:
    """The lines that uvicorn logs when it starts."""
    return (
        f"Started server process [{os.getpid()}]",
        "Waiting for application startup.",
        "Application startup complete.",
        f"Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)",
    )
