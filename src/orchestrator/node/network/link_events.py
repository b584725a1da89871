"""What happens on the leader link, as its two sides tell it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
"""As it was read from the wire; protocol/link.py has the types."""


@dataclass(frozen=True)
class LinkOpened:
    """A node proved the key and is connected."""

    node: str


@dataclass(frozen=True)
class MessageReceived:
    """A node sent a message."""

    node: str
    message: Message


@dataclass(frozen=True)
class LinkClosed:
    """A node's connection is over. broken: it was closed or reset, rather than lost in silence."""

    node: str
    reason: str
    broken: bool


Event = LinkOpened | MessageReceived | LinkClosed
