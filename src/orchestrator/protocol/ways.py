"""The verbs `listen` and `dial`: requests and answers about the paths between nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.protocol.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenRequest(Message):
    """Listen for a few seconds: on TCP ports of the address, and for datagrams on it and on the rails: {address:
    interface that they must come in by}."""

    address: str
    tcp_ports: tuple[int, ...] = ()
    seconds: float = 8.0
    rails: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DialTarget(Message):
    """What to try. kind: tcp, or mtu for a datagram of `size` bytes that must pass in one piece; once: no second try.

    source: our address; device: the interface that it must leave by; name, side, far: which path it is, for the caller.
    """

    name: str = ""
    kind: str
    side: str = ""
    far: str = ""
    address: str
    port: int
    source: str = ""
    device: str = ""
    size: int = 0
    timeout_s: float = 1.0
    once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DialRequest(Message):
    """All targets at once; those that did not answer are tried up to `tries` times."""

    targets: tuple[DialTarget, ...] = ()
    tries: int = 1
    spacing_s: float = 0.5


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
    """One path that was tested; `model.reach.Trial` explains the fields."""

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
    """One result per target."""

    ways: tuple[Dialed, ...]
