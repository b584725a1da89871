"""A connection between two agents that a firewall resets from time to time."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from dataclasses import dataclass, field

from tests.support.ports import free_port

RESET = struct.pack("ii", 1, 0)


@dataclass
class ResettingWay:
    """Listens on `port` and forwards connections to another loopback port; `cut` resets them and refuses new ones."""

    target: int
    port: int = field(default_factory=free_port)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _listener: socket.socket | None = None
    _over: bool = False

    def __enter__(self) -> ResettingWay:
        self.restore()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._thread.join()
        self.cut()
        self._selector.close()

    def cut(self) -> None:
        """Reset open connections; a new connection is refused, which is a reset too."""
        with self._lock:
            for key in list(self._selector.get_map().values()):
                self._drop(key.fileobj)  # type: ignore[arg-type]

    def restore(self) -> None:
        """Forward again."""
        listener = socket.create_server(("127.0.0.1", self.port))
        with self._lock:
            self._selector.register(listener, selectors.EVENT_READ, None)

    def _carry(self) -> None:
        while not self._over:
            with self._lock:
                for key, _ in self._selector.select(0):
                    self._serve(key.fileobj, key.data)  # type: ignore[arg-type]
            threading.Event().wait(0.005)

    def _serve(self, sock: socket.socket, other: socket.socket | None) -> None:
        if sock.fileno() < 0:
            return
        if other is None:
            near, _ = sock.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self.target), timeout=5)
            except OSError:
                near.close()
                return
            self._selector.register(near, selectors.EVENT_READ, far)
            self._selector.register(far, selectors.EVENT_READ, near)
            return
        data = b""
        with contextlib.suppress(OSError):
            data = sock.recv(65536)
        if data:
            with contextlib.suppress(OSError):
                other.sendall(data)
        else:
            self._drop(sock)
            self._drop(other)

    def _drop(self, sock: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(sock)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        sock.close()
