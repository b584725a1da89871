"""A connection to a web server from this node: plain, or by TLS to the holder of one certificate."""

from __future__ import annotations

import http.client
import ssl
from urllib.parse import urlsplit


def connection(url: str, timeout_s: float, certificate: str = "") -> http.client.HTTPConnection:
    """Not yet connected. certificate: path of the one certificate that https accepts; its names are not looked at,
    since a server is asked by its own node, at an address that no certificate names.

    Raises ValueError for what is no http or https URL, OSError where the certificate can't be read.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"not an HTTP URL: {url!r}")
    if parts.scheme == "http":
        return http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=timeout_s)
    trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusted.check_hostname = False
    trusted.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusted.load_verify_locations(cafile=certificate)
    return http.client.HTTPSConnection(parts.hostname, parts.port or 443, timeout=timeout_s, context=trusted)


def target(url: str) -> str:
    """What the request line asks for."""
    parts = urlsplit(url)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
