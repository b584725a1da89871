"""Messages from JSON that is known to be valid."""

from __future__ import annotations

from typing import Any

from orchestrator.protocol.message import M, Unreadable


def message(kind: type[M], raw: Any) -> M:
    """The message in a JSON value."""
    found = kind.read(raw)
    assert not isinstance(found, Unreadable), str(found)
    return found
