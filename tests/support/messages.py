"""Messages out of JSON that is known to be good."""

from __future__ import annotations

from typing import Any

from orchestrator.protocol.shape import M, Unreadable


def message(kind: type[M], raw: Any) -> M:
    """The message that a JSON value holds."""
    found = kind.read(raw)
    assert not isinstance(found, Unreadable), str(found)
    return found
