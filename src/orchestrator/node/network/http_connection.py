"""A connection to a web server for one exchange, under one deadline and one byte limit; redirects are not followed.

Plain, by TLS to the holder of one certificate, or to whoever the system trusts.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from orchestrator.node.network.exchange import MOST_HEARD, Exchange


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
