"""Level 0: plain SSH servers on loopback addresses, for users without root. This module reliably ends such a lab."""

from __future__ import annotations

import hashlib
import os
import signal
import socket

from l40s_lab.life.addressing import FIRST_NODE
from l40s_lab.processes import Identity, has_in_environment, those, wait_until
from orchestrator.protocol.errors import NodeError

MARK = "L40S_LAB_MARK"
"""Environment variable of every process started in a level-0 lab: the lab's directory."""
_FIRST_PORT = 22022
_PATIENCE_S = 5.0


def choose_addresses(directory: str, nodes: int) -> tuple[str, int]:
    """(first three numbers of the addresses, port of the SSH servers) that are not in use."""
    number = hashlib.sha256(directory.encode()).digest()[0] or 77
    for step in range(255):
        prefix = f"127.77.{1 + (number + step) % 254}"
        if all(_is_free(f"{prefix}.{FIRST_NODE + index}", _FIRST_PORT) for index in range(nodes)):
            return prefix, _FIRST_PORT
    raise NodeError(
        f"port {_FIRST_PORT} is in use on every address of 127.77.0.0/16",
        where="lab",
        fix="end another lab by `lab down` with the --name that it was made with",
    )


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def ask_to_end(supervisor: Identity) -> None:
    """Ask the supervisor of a level-0 lab to end everything below it."""
    supervisor.kill(signal.SIGTERM)
    wait_until(lambda: not supervisor.alive, deadline_s=_PATIENCE_S)


def end_marked(directory: str, *, deadline_s: float) -> None:
    """End every process of ours with this lab's mark, which a killed supervisor could no longer end."""
    if not wait_until(lambda: not _kill_marked(directory), deadline_s=deadline_s):
        raise NodeError(
            "processes of the lab do not end", where=directory, fix=f"find them with `grep -l {MARK} /proc/*/environ`"
        )


def _kill_marked(directory: str) -> int:
    mark = f"{MARK}={directory}"
    marked = [one for one in those(lambda entry: has_in_environment(entry, mark)) if one.pid != os.getpid()]
    for one in marked:
        one.kill()
    return len(marked)
