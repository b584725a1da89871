"""Is this node's state directory its own? Whoever takes a gang's lock leaves a random mark in it, one a node.

A node that finds another one's mark in its own directory shares it (a home on NFS, one disk mounted twice): their
runs, locks and reports would overwrite each other. The names come from the lock's random token, so nobody has asked for
them before and no NFS client has an old answer in its cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable

from orchestrator.node import files
from orchestrator.node.failure import Failure

_MARK = "lock.mark-"


def leave_mark(gang: str, token: str, node: str) -> None:
    """In the gang's folder; those of former holders go. A full disk takes no file, and then no run either."""
    ours = _of_token(token)
    with contextlib.suppress(OSError):
        for old in os.listdir(gang):
            if old.startswith(_MARK) and not old.startswith(ours):
                with contextlib.suppress(OSError):
                    os.unlink(f"{gang}/{old}")
    with contextlib.suppress(OSError):
        files.write(_mark(gang, token, node), node + "\n")


def take_mark_away(gang: str, token: str, node: str) -> None:
    """Ours alone."""
    with contextlib.suppress(OSError):
        os.unlink(_mark(gang, token, node))


def refuse_anothers_mark(gang: str, token: str, node: str, others: Iterable[str]) -> None:
    """Raises Failure where one of these nodes of the gang writes to this directory too."""
    for other in others:
        if other != node and os.path.exists(_mark(gang, token, other)):
            raise Failure(
                "shared-state",
                f"{node} and {other} have the same state directory; is it in a shared home or on NFS?",
                gang.partition("/gangs/")[0],
                "set l40s_state_dir to a directory on a local disk of each node, then run the command again",
            )


def _mark(gang: str, token: str, node: str) -> str:
    return f"{gang}/{_of_token(token)}{hashlib.sha256(node.encode()).hexdigest()[:16]}"


def _of_token(token: str) -> str:
    return f"{_MARK}{hashlib.sha256(token.encode()).hexdigest()[:16]}-"
