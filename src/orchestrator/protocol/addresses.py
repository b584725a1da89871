"""Addresses as text."""

from __future__ import annotations


def host_port(host: str, port: int) -> str:
    """HOST:PORT as URLs and command lines have it: an IPv6 address stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
