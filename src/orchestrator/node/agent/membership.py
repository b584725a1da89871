"""Which agents of its gang an agent still hears, and since when it does not. Pure: link messages in, causes out.

A closed or reset connection has a moment to come back; a silent one has the lease. The leader's agent is connected to
every other agent; the other agents are connected only to the leader's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.protocol.report import SILENT_S, Cause

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


RECONNECT_S = 2.0
"""A member that missed the reset learns of it with its next digest, a second later, and tries every 0.1 s."""
QUIET_S = 2.0
"""Two messages missed: `status` no longer reports that this node's agent is heard."""


@dataclass
class Membership:
    """One agent's view. partners: nodes that it is connected to; leads: they connect to it."""

    node: str
    partners: Sequence[str]
    leads: bool
    lease_s: float
    epoch_s: float
    """Epoch seconds at zero of the monotonic clock, for the time in a cause."""
    heard: dict[str, float] = field(default_factory=dict)
    """When each node that ever joined was last heard, monotonic seconds."""
    joined: frozenset[str] = frozenset()
    """Nodes that are connected now."""
    ended: set[str] = field(default_factory=set)
    """Nodes that have reported their end, or whose agent is gone: they have no lease."""
    _broke: dict[str, tuple[float, str]] = field(default_factory=dict)
    """When and why each connection was closed or reset that may still come back.

    A reset shows that something on the path ended the connection: the other agent's end, or a firewall. So it is what
    follows that counts: a live agent connects again.
    """

    def hear(self, now: float, event: Event) -> None:
        """Take an event of the link."""
        match event:
            case LinkOpened(node):
                self.joined |= {node}
                self.heard[node] = now
                self.ended.discard(node)
                self._broke.pop(node, None)
            case MessageReceived(node):
                self.heard[node] = now
            case LinkClosed(node, reason, broken):
                self.joined -= {node}
                if broken and node not in self.ended:  # a node that has ended has reported it, with the reason
                    self._broke.setdefault(node, (now, reason))  # a connection that the network lost has its lease

    def guardian_reported(self, node: str, now: float) -> Cause:
        """A node's guardian reported that its agent is gone, and the engine with it."""
        return self._gone(node, "ended (reported by its guardian process), and its engine with it", now)

    def lost(self, now: float, *, refused: bool = False) -> list[Cause]:
        """Agents that have ended without reporting it, and nodes that were silent for a lease, or all: then this node
        is cut off. refused: nothing listens on the leader's port (member)."""
        return [*self._not_back(now, refused=refused), *self._expired(now)]

    def may_come_back(self) -> bool:
        """A connection broke a moment ago, and may be made again."""
        return any(node not in self.ended for node in self._broke)

    def ending(self, now: float) -> set[str]:
        """Nodes that are still connected and have not reported their end; one whose lease is over may never do so."""
        return {node for node in self.joined - self.ended if now - self.heard[node] <= self.lease_s}

    def silent(self, now: float) -> tuple[str, ...]:
        """Partners that have been silent for too long: SILENT_S, or half of the lease if that is shorter."""
        shown_after = min(SILENT_S, self.lease_s / 2)
        return tuple(sorted(node for node, silence in self._silences(now).items() if silence > shown_after))

    def links(self, now: float) -> dict[str, str]:
        """One word for each partner: heard, quiet, silent, lost, ended."""
        silences, silent = self._silences(now), self.silent(now)
        return {node: self._word(node, silences.get(node, 0.0), silent) for node in self.partners}

    def _word(self, node: str, silence: float, silent: Sequence[str]) -> str:
        if node in self.ended:
            return "ended"
        if node in silent:
            return "silent"
        if node not in self.joined:
            return "lost"
        return "quiet" if silence > QUIET_S else "heard"

    def _silences(self, now: float) -> dict[str, float]:
        return {node: now - heard for node, heard in self.heard.items() if not self.leads or node not in self.ended}

    def _not_back(self, now: float, *, refused: bool) -> list[Cause]:
        """Nodes whose connection did not come back in time. A member waits for its lease instead if the leader's
        agent may still listen there, or if no packets get through."""
        again = "no new connection was made" if self.leads else "every new connection was refused"
        late = {node: reason for node, (since, reason) in self._broke.items() if now - since >= RECONNECT_S}
        self._broke = {node: broke for node, broke in self._broke.items() if node not in late}
        return [
            self._gone(node, f"ended ({reason}), and {again} for {RECONNECT_S:g} s", now, what="the connection to ")
            for node, reason in late.items()
            if node not in self.ended and (self.leads or refused)
        ]

    def _gone(self, node: str, how: str, now: float, what: str = "") -> Cause:
        self.ended.add(node)
        fix = f"check on {node} whether it rebooted or the agent was killed: `last -x reboot`, `journalctl -k`"
        return Cause(node=node, text=f"{what}the agent on {node} {how}", at=self.epoch_s + now, fix=fix)

    def _expired(self, now: float) -> list[Cause]:
        silences = self._silences(now)
        expired = {node: silence for node, silence in silences.items() if silence > self.lease_s}
        at = self.epoch_s + now
        if expired and len(silences) > 1 and len(self.silent(now)) == len(silences):  # our own network is broken
            text = f"no heartbeat from any other node for {max(expired.values()):.0f} s: {self.node} is disconnected"
            return [Cause(node=self.node, text=text, at=at, fix=f"check {self.node}'s own network link and firewall")]
        return [
            Cause(
                node=node,
                text=f"no heartbeat from {node} for {silence:.0f} s",
                at=at,
                fix=f"check that {node} is running, and the network between it and {self.node}",
            )
            for node, silence in expired.items()
        ]
