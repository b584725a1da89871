"""Events of several nodes in one order, even if their clocks differ. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from orchestrator.protocol.message import MOST_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvents:
    """Events written by one node's agent. ahead_s: how far that node's clock is ahead of ours, in seconds; doubt_s: the
    largest possible error of that, half of the time that the answer took."""

    events: Sequence[Mapping[str, Any]]
    ahead_s: float = 0.0
    doubt_s: float = 0.0

    @property
    def correction_s(self) -> float:
        """Seconds to subtract from this node's times: 0 if its clock may agree with ours, so that events of nodes whose
        clocks agree keep their order."""
        return self.ahead_s if abs(self.ahead_s) > self.doubt_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """One event. at: epoch seconds by our own clock."""

    at: float
    node: str
    what: str
    words: str

    def as_json(self) -> dict[str, Any]:
        """In the form of `status --watch` and `why --all`."""
        return {"at": self.at, "node": self.node, "event": self.what, "words": self.words}


def timeline(told: Mapping[str, NodeEvents]) -> tuple[TimelineEvent, ...]:
    """All nodes' events by our own clock. Events of one node keep their order even if its clock was set meanwhile."""
    found: list[TimelineEvent] = []
    for node, one in told.items():
        latest = 0.0
        for event in one.events:
            at = event.get("at")
            if isinstance(at, (int, float)) and abs(at) <= MOST_SECONDS:
                latest = max(latest, at - one.correction_s)
                found.append(
                    TimelineEvent(at=latest, node=node, what=str(event.get("event") or ""), words=_words(event))
                )
    return tuple(sorted(found, key=lambda happened: happened.at))


_SENTENCES = {
    "checked": "the checks before the start have passed",
    "state": "{state}",
    "phase": "{name}",
    "cause": "{text}",
    "remark": "{text}",
    "armed for too long": "armed, and nothing was heard for too long: it ends",
    "engine started": "the engine was started (pid {pid})",
    "engine ended": "the engine ended: {how}",
    "process ended": "TP{tp_rank} (pid {pid}) ended: {how}",
    "rails": "RDMA ports that are down: {gone}",
    "service": "the service is {word}: {detail}",
    "joined": "{node} is connected",
    "left": "{node} is gone: {reason}",
    "ended": "everything has ended",
}
"""What happened, by the event's name, with its details in their places."""


def _words(event: Mapping[str, Any]) -> str:
    """An event as a sentence; one that is not known by its name with its details."""
    details = {
        name: value for name, value in event.items() if name not in ("at", "event") and value not in ("", None, [])
    }
    name = str(event.get("event") or "")
    with suppress(KeyError, IndexError, ValueError):
        if name == "rails":
            details = {"gone": ", ".join(map(str, event["gone"]))}
            if not details["gone"]:
                return "all RDMA ports work"
        far = f" {event.get('step')}/{event['of']}" if name == "phase" and event.get("of") else ""
        return _SENTENCES[name].format_map(details) + far
    return f"{name} {', '.join(f'{key} {value}' for key, value in details.items())}".rstrip()
