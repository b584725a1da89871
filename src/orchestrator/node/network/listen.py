"""Verb `listen`: listen for a few seconds, so that other nodes can test the path to this one.

The first line of the answer names what is open. A rail's port hears only what comes
in by that interface, as RDMA does; another one of the machine would answer for its address too.
It ends after `seconds`, or when the caller goes away.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import selectors
import socket
import struct
import sys
import time
from typing import Any

from orchestrator.node.requests import request_of
from orchestrator.node.telling import tell
from orchestrator.protocol.ways import Listening, ListenRequest

LONGEST_S = 60.0
MOST_CALLERS = 256
"""Connections at once; who comes on top is closed at once, so that strangers take no descriptor that a node needs."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: closing sends a reset, and leaves no TIME_WAIT (socket(7))."""


def stream(request: dict[str, Any]) -> None:
    """Open the listeners, say which, serve until the time limit was reached."""
    asked = request_of(ListenRequest, request)
    until = time.monotonic() + min(asked.seconds, LONGEST_S)
    with selectors.DefaultSelector() as selector:
        opened = Listening(
            tcp={str(port): str(_listen(selector, asked.address, port)) for port in asked.tcp_ports},
            ephemeral=_listen(selector, asked.address, 0),
            udp={asked.address: _echo(selector, asked.address)},
            rails={each: _echo(selector, each, device) for each, device in asked.rails.items()},
            pid=os.getpid(),
        )
        tell({"ok": True, "value": opened.as_json()})
        try:
            _serve(selector, until)
        finally:
            for sock in [key.fileobj for key in selector.get_map().values() if isinstance(key.fileobj, socket.socket)]:
                sock.close()


def _listen(selector: selectors.BaseSelector, address: str, port: int) -> str | int:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setblocking(False)
    try:
        listener.bind((address, port))
        listener.listen(64)
    except OSError as wrong:
        listener.close()
        return "taken" if wrong.errno == errno.EADDRINUSE else errno.errorcode.get(wrong.errno or 0, str(wrong))
    selector.register(listener, selectors.EVENT_READ, "tcp")
    return "listening" if port else int(listener.getsockname()[1])


def _echo(selector: selectors.BaseSelector, address: str, device: str = "") -> int | str:
    echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    echo.setblocking(False)
    try:
        if device:
            bind_to_device(echo, device)
        echo.bind((address, 0))
    except OSError as wrong:
        echo.close()
        return errno.errorcode.get(wrong.errno or 0, str(wrong))
    selector.register(echo, selectors.EVENT_READ, "udp")
    return int(echo.getsockname()[1])


def bind_to_device(sock: socket.socket, device: str) -> None:
    """As far as it goes: an old kernel asks for root, and a recorded interface is not there."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode()[:15] + b"\0")


def _serve(selector: selectors.BaseSelector, until: float) -> None:
    caller = select.poll()
    caller.register(sys.stdout.fileno(), select.POLLERR | select.POLLHUP)
    while (left := until - time.monotonic()) > 0 and not caller.poll(0):
        for key, _ in selector.select(min(left, 0.2)):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            if key.data == "tcp":
                _accept(selector, sock)
            elif key.data == "caller":
                selector.unregister(sock)
                sock.close()
            else:
                _answer(sock)


def _accept(selector: selectors.BaseSelector, listener: socket.socket) -> None:
    """The caller ends the connection, by a reset: nothing of it stays on a port that an engine wants to bind soon."""
    try:
        connection, _ = listener.accept()
    except OSError:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    if len(selector.get_map()) > MOST_CALLERS:
        connection.close()
        return
    connection.setblocking(False)
    selector.register(connection, selectors.EVENT_READ, "caller")


def _answer(echo: socket.socket) -> None:
    try:
        data, peer = echo.recvfrom(65535)
        echo.sendto(data[:16], peer)
    except OSError:
        return
