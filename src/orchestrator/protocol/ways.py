"""The verbs `listen` and `dial`: what nodes say of the ways between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.protocol.shape import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening(Message):
    """What a node has opened. Ports of `udp` and `rails` by address; an error's name where one could not be opened."""

    tcp: Mapping[str, str]
    ephemeral: Any
    udp: Mapping[str, Any]
    rails: Mapping[str, Any]
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialed(Message):
    """One way that was tried; `model.reach.Trial` says what the fields mean."""

    name: str
    address: str
    port: int
    kind: str
    side: str
    outcome: str
    ms: float | None = None
    size: int = 0
    detail: str = ""
    far: str = ""
    tries: int = 1
    resolved: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DialAnswer(Message):
    """One for each target."""

    ways: tuple[Dialed, ...]
