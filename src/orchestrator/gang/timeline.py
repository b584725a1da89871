"""What nodes tell in the course of time: their events in one order, even if their clocks differ, and the rates of their
counters between two readings. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.protocol.gauges import GaugesAnswer, PortGauges
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


def timeline(logs: Mapping[str, NodeEvents]) -> tuple[TimelineEvent, ...]:
    """All nodes' events by our own clock. Events of one node keep their order even if its clock was set meanwhile."""
    events: list[TimelineEvent] = []
    for node, log in logs.items():
        latest = 0.0
        for event in log.events:
            at = event.get("at")
            if isinstance(at, (int, float)) and abs(at) <= MOST_SECONDS:
                latest = max(latest, at - log.correction_s)
                events.append(
                    TimelineEvent(at=latest, node=node, what=str(event.get("event") or ""), words=_words(event))
                )
    return tuple(sorted(events, key=lambda happened: happened.at))


def since_ready(events: Sequence[TimelineEvent]) -> tuple[TimelineEvent, ...]:
    """What happened after the last node had become ready: once a gang serves, its start says nothing any more."""
    ready = [place for place, event in enumerate(events) if event.what in ("state", "phase") and event.words == "ready"]
    return tuple(events[ready[-1] + 1 :]) if ready else tuple(events)


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
    "gathering": "the engine hangs: its ranks are looked at while they stand",
    "gathered": "its ranks were looked at",
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
    with suppress(KeyError, IndexError, TypeError, ValueError):
        if name == "rails":
            details = {"gone": ", ".join(map(str, event["gone"]))}
            if not details["gone"]:
                return "all RDMA ports work"
        far = f" {event.get('step')}/{event['of']}" if name == "phase" and event.get("of") else ""
        return _SENTENCES[name].format_map(details) + far
    return f"{name} {', '.join(f'{key} {value}' for key, value in details.items())}".rstrip()


WORD = 4
"""port_xmit_data and port_rcv_data count 32-bit words (Linux Documentation/ABI/stable/sysfs-class-infiniband)."""
ERRORS = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "local_link_integrity_errors",
    "excessive_buffer_overrun_errors", "out_of_sequence", "packet_seq_err", "local_ack_timeout_err",
    "rnr_nak_retry_err", "rx_icrc_encapsulated",
)  # fmt: skip
DISCARDS = ("port_xmit_discards", "rx_discards_phy")
CONGESTION = ("np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets")


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRate:
    """One RDMA port between two readings. up: its state is ACTIVE, None where it was not read; bytes per
    second are None before the second reading.

    grown: errors, discards and congestion marks that have grown since the last reading, by the kernel's name
    errors: all errors and discards since the driver was loaded
    """

    device: str
    port: int
    up: bool | None
    received_bytes_s: float | None = None
    sent_bytes_s: float | None = None
    errors: int = 0
    grown: Mapping[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """In the form of `status --wide --json`."""
        return {**asdict(self), "grown": dict(self.grown)}


def port_rates(before: GaugesAnswer | None, now: GaugesAnswer) -> tuple[PortRate, ...]:
    """Every port of a node. A counter that went back (the driver was reloaded) gives no rate."""
    old = {(port.device, port.port): port for port in before.ports} if before else {}
    seconds = now.now - before.now if before else 0.0
    return tuple(_rate(old.get((port.device, port.port)), port, seconds) for port in now.ports)


def _rate(before: PortGauges | None, now: PortGauges, seconds: float) -> PortRate:
    watched = (*ERRORS, *DISCARDS, *CONGESTION)
    old = before.counters if before is not None else None
    grown = {} if old is None else {name: more for name in watched if (more := _more(old, now.counters, name) or 0) > 0}
    return PortRate(
        device=now.device,
        port=now.port,
        up="ACTIVE" in now.state if now.state else None,
        received_bytes_s=_per_second(old, now.counters, "port_rcv_data", seconds),
        sent_bytes_s=_per_second(old, now.counters, "port_xmit_data", seconds),
        errors=sum(now.counters.get(name, 0) for name in (*ERRORS, *DISCARDS)),
        grown=grown,
    )


def _more(before: Mapping[str, int], now: Mapping[str, int], name: str) -> int | None:
    more = now[name] - before[name] if name in before and name in now else None
    return more if more is None or more >= 0 else None


def _per_second(before: Mapping[str, int] | None, now: Mapping[str, int], name: str, seconds: float) -> float | None:
    more = _more(before, now, name) if before is not None and seconds > 0 else None
    return None if more is None else WORD * more / seconds


def growth(before: float, now: float, seconds: float) -> float | None:
    """A counter's increase per second; None if no time has passed or it was reset."""
    return (now - before) / seconds if seconds > 0 and now >= before else None
