"""A connection to a web server for one exchange, under one deadline and one byte limit; redirects are not followed.

Plain, by TLS to the holder of one certificate, or to whoever the system trusts.
"""

from __future__ import annotations

import errno
import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

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


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, exchange: Exchange, **more: Any) -> None:
        super().__init__(sock, **more)
        self.fp.close()
        self.fp = exchange.makefile(sock)


def ask(
    method: str,
    url: str,
    body: str | bytes | None,
    headers: Mapping[str, str],
    timeout_s: float,
    *,
    certificate: str | None = None,
    longest: int,
    most: int = MOST_HEARD,
) -> tuple[int, bytes]:
    """Status, and at most `longest` bytes of the answer. Raises as `connection` does, OSError and HTTPException."""
    made = connection(url, timeout_s, certificate, most=most)
    try:
        made.request(method, target(url), body, headers)
        answer = made.getresponse()
        return answer.status, answer.read(longest) if longest else b""  # even no bytes wait for a chunk's length
    finally:
        made.close()


def connection(
    url: str, timeout_s: float, certificate: str | None = None, *, most: int = MOST_HEARD
) -> http.client.HTTPConnection:
    """Not yet connected; for one request, to be answered in `timeout_s` with at most so many bytes.

    certificate: path of the one certificate that https accepts; its names are not looked at, since a server is asked by
    its own node, at an address that no certificate names. None: whoever the system trusts, by name.
    Raises ValueError for what is no http or https URL, OSError where the certificate can't be read.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"not an HTTP URL: {url!r}")
    if parts.scheme == "http":
        made = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=timeout_s)
    else:
        trusted = None if certificate is None else _trusting(certificate)
        made = http.client.HTTPSConnection(parts.hostname, parts.port or 443, timeout=timeout_s, context=trusted)
    made.response_class = partial(_Response, exchange=Exchange(timeout_s, most))  # type: ignore[assignment]
    return made


def _trusting(certificate: str) -> ssl.SSLContext:
    trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted.check_hostname = False
    trusted.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusted.load_verify_locations(cafile=certificate)
    return trusted


def target(url: str) -> str:
    """What the request line asks for."""
    parts = urlsplit(url)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
