"""Connections of the leader link that were closed or reset, and the time by which each must be back. Pure.

A reset shows that something on the path ended the connection: the other agent's end, or a firewall. So it is what
follows that counts: a live agent connects again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

RECONNECT_S = 2.0
"""A member that missed the reset learns of it with its next digest, a second later, and tries every 0.1 s."""


@dataclass
class BrokenLinks:
    """Feed it what broke and who came back, monotonic seconds; ask who did not."""

    _broke: dict[str, tuple[float, str]] = field(default_factory=dict)

    def broke(self, node: str, reason: str, now: float) -> None:
        """A node's connection was closed or reset."""
        self._broke.setdefault(node, (now, reason))

    def back(self, node: str) -> None:
        """It is connected again."""
        self._broke.pop(node, None)

    @property
    def waited_for(self) -> frozenset[str]:
        """Nodes that still have time to come back."""
        return frozenset(self._broke)

    def overdue(self, now: float) -> list[tuple[str, str]]:
        """(node, reason) of those that did not come back in time; each once."""
        late = [(node, reason) for node, (since, reason) in self._broke.items() if now - since >= RECONNECT_S]
        for node, _ in late:
            del self._broke[node]
        return late
