"""Ports for tests to listen on, outside the range that other tests' outgoing connections use."""

from __future__ import annotations

import itertools
import random
import socket
from collections import deque

_PORTS = list(range(20000, 32000))  # below Linux's ephemeral range (ip_local_port_range starts at 32768)
random.shuffle(_PORTS)
_NEXT = itertools.cycle(_PORTS)
_CLAIMS: deque[socket.socket] = deque()
_MOST = 64
"""Of the ports returned last, whose callers may not listen on them yet: no other process of the tests takes these."""


def free_port(*addresses: str, adjacent: int = 1) -> int:
    """A TCP port that is free on all of these addresses (default 127.0.0.1), and not one returned before.

    adjacent: so many from this one on are
    """
    for first in itertools.islice(_NEXT, len(_PORTS)):
        ports = range(first, first + adjacent)
        free = all(_is_free(address, port) for address in addresses or ("127.0.0.1",) for port in ports)
        if free and all(_claimed(port) for port in ports):
            return first
    raise AssertionError("no free port")


def _claimed(port: int) -> bool:
    """By an abstract socket's name (unix(7)), which ends with its process."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0l40s-deploy-test-port-{port}")
    except OSError:
        claim.close()
        return False
    _CLAIMS.append(claim)
    if len(_CLAIMS) > _MOST:
        _CLAIMS.popleft().close()
    return True


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True
