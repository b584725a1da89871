"""Ports for tests to listen on, where no outgoing connection of another test can take them in the meantime."""

from __future__ import annotations

import os
import random
import socket

_RANDOM = random.Random(os.getpid())
_LOWEST, _HIGHEST = 20000, 32000  # below Linux's ephemeral range (ip_local_port_range starts at 32768)


def free_port(*addresses: str) -> int:
    """A TCP port that is free on all of these addresses (127.0.0.1 where none is given)."""
    for _ in range(1000):
        port = _RANDOM.randrange(_LOWEST, _HIGHEST)
        if all(_is_free(address, port) for address in addresses or ("127.0.0.1",)):
            return port
    raise AssertionError("no free port")


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True
