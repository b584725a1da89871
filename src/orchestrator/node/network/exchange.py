"""What a peer says, under one deadline and one byte limit.

Apart from http_connection.py, whose http.client is a tenth of an agent's start.
"""

from __future__ import annotations

import errno
import io
import socket
import time
from typing import Any

MOST_HEARD = 8 << 20
"""Bytes of all that a peer says; the longest answer that is read has half as many."""


class Exchange:
    """What a peer says, under one deadline and one byte limit: a byte now and then wins no time."""

    def __init__(self, seconds: float, most: int = MOST_HEARD) -> None:
        self._ends = time.monotonic() + seconds
        self._left = self._most = most

    def rest(self) -> float:
        """Seconds. Raises TimeoutError at the end."""
        if (rest := self._ends - time.monotonic()) <= 0:
            raise TimeoutError("timed out")
        return rest

    def count(self, heard: int) -> None:
        """Raises OSError above the limit."""
        self._left -= heard
        if self._left < 0:
            raise OSError(errno.EMSGSIZE, f"it said more than {self._most} bytes")

    def makefile(self, sock: socket.socket) -> io.BufferedReader:
        """In place of the socket's own."""
        return io.BufferedReader(_Heard(sock, self))


class _Heard(io.RawIOBase):
    def __init__(self, sock: socket.socket, exchange: Exchange) -> None:
        self._sock, self._raw, self._exchange = sock, sock.makefile("rb", buffering=0), exchange

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._exchange.rest())
        heard = self._raw.readinto(buffer)
        self._exchange.count(heard or 0)
        return heard

    def close(self) -> None:
        self._raw.close()
        super().close()
