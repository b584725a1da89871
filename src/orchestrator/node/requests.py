"""A verb's request, read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.node.failure import Failure
from orchestrator.protocol.message import M, Unreadable


def request_of(kind: type[M], raw: Mapping[str, Any]) -> M:
    """The request that stdin held. Raises Failure, which names the key, where it holds none."""
    found = kind.read(raw)
    if isinstance(found, Unreadable):
        raise Failure("bad-request", str(found), "request")
    return found
