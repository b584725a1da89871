"""Ports for tests to listen on, outside the range that other tests' outgoing connections use."""

from __future__ import annotations

import itertools
import os
import random
import socket

_LOWEST, _HIGHEST = 20000, 32000  # below Linux's ephemeral range (ip_local_port_range starts at 32768)
_WORKERS = 16
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
_MINE = list(range(_LOWEST + _WORKER, _HIGHEST, _WORKERS))
"""This worker's own range; no other worker of the run uses it."""
random.Random(os.getpid()).shuffle(_MINE)
_NEXT = itertools.cycle(_MINE)


def free_port(*addresses: str) -> int:
    """A TCP port that is free on all of these addresses (default 127.0.0.1), and not the port returned last:
    its caller may not listen on it yet."""
    for port in itertools.islice(_NEXT, len(_MINE)):
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
