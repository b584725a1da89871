"""Connections that one fleet leaves to the next one of the same command: a login costs a node and us 100 ms each."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections.abc import Sequence

from orchestrator.model.errors import DeployError
from orchestrator.model.inventory import NodeSpec
from orchestrator.remote.session import Connection

KEPT_S = 2.0
"""An idle connection older than this may have lost its node: a new one says so in better words, and sooner."""

_left: dict[str, tuple[Connection, float]] = {}
_lock = threading.Lock()


def leave(connection: Connection) -> None:
    """Keep an idle connection for the next caller that needs that node."""
    with _lock:
        before = _left.get(connection.spec.name)
        _left[connection.spec.name] = connection, time.monotonic()
        if len(_left) == 1:
            _sweep_later()
    if before is not None:
        before[0].close()


def take(spec: NodeSpec) -> Connection | None:
    """The connection to that node, as a session of this spec; None where there is none, or none to be trusted."""
    with _lock:
        connection, since = _left.pop(spec.name, (None, 0.0))
    if connection is None:
        return None
    if connection.spec.reach == spec.reach and connection.alive and time.monotonic() - since <= KEPT_S:
        connection.spec = spec
        return connection
    connection.close()
    return None


def _sweep_later() -> None:
    later = threading.Timer(KEPT_S, _sweep)
    later.daemon = True
    later.start()


def _sweep() -> None:
    """Close unused connections: a command may run for days."""
    with _lock:
        old = [name for name, (_, since) in _left.items() if time.monotonic() - since >= KEPT_S]
        _close([_left.pop(name)[0] for name in old])
        if _left:
            _sweep_later()


@atexit.register
def _close_all() -> None:
    _close([connection for connection, _ in _left.values()])
    _left.clear()


def _close(connections: Sequence[Connection]) -> None:
    for connection in connections:
        with contextlib.suppress(DeployError, OSError):
            connection.close()
