"""The HTTP server of `exporter`, `guard --metrics` and `web`: strangers may keep it busy, and not the command that it
is part of."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from orchestrator.model.errors import InputError

MOST_CLIENTS = 64
"""Concurrent clients, each with a thread; more are closed. Other descriptors are for the connections to the nodes."""
SILENT_S = 15.0


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, *words: Any, **more: Any) -> None:
        self._free = threading.BoundedSemaphore(MOST_CLIENTS)
        super().__init__(*words, **more)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects, or does not speak HTTP, is not an error."""


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = SILENT_S  # a client that sends nothing keeps no thread

    def log_message(self, *_: Any) -> None:
        """A page asks every second."""


def listen(application: Callable[..., Any], host: str, port: int) -> WSGIServer:
    """A server that listens already; `serve_forever` answers. Raises InputError where it can't listen."""
    kind = _Server6 if ":" in host else _Server
    try:
        return make_server(host, port, application, server_class=kind, handler_class=_Handler)
    except socket.gaierror:
        raise InputError(
            f"{host!r} is no address of this machine",
            where="command line",
            fix="use one without a port (`ip -brief address` lists them); the port goes to --port",
        ) from None
    except OSError as failure:
        fix = f"choose another --port, or stop the listener: ss -ltnp 'sport = :{port}'"
        if failure.errno == errno.EADDRNOTAVAIL:
            fix = "name an address of this machine: `ip -brief address` lists them"
        raise InputError(f"can't listen: {failure.strerror or failure}", where=f"{host}:{port}", fix=fix) from None
