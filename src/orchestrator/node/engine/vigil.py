"""What a guardian concludes from its agent's messages and silence. Pure.

An agent that is gone has closed its end. A live one that is silent for as long as the gang's lease (stopped by a
signal, or stuck) has been given up by the other agents.
"""

from __future__ import annotations

from dataclasses import dataclass

BEAT = b"beat\n"
GO = b"go\n"
RELEASE = b"release\n"


@dataclass
class Vigil:
    """heard_at: when the agent was last heard, monotonic seconds; patience_s: how long it may say nothing: until its
    loop begins what it may take to arm, then the lease."""

    heard_at: float
    patience_s: float
    lease_s: float
    released: bool = False
    """The agent's end is no death."""
    gone: bool = False
    """It has closed its end."""

    def hear(self, now: float, words: bytes) -> bool:
        """Take what came from the agent, b'' for its end; True where the engine is to be started."""
        if not words:
            self.gone = True
            return False
        self.heard_at = now
        self.released = self.released or RELEASE in words
        if BEAT in words:
            self.patience_s = self.lease_s
        return GO in words

    def is_silent(self, now: float) -> bool:
        """It has been silent for too long: it must be killed with its engine."""
        return now - self.heard_at > self.patience_s

    def over(self, now: float) -> bool:
        """There is no agent to serve any more: everything of the engine's is to be ended."""
        return self.gone or self.is_silent(now)

    def reports_death(self, now: float) -> bool:
        """The other agents must hear of it; if it was silent, they have given it up already."""
        return not (self.released or self.is_silent(now))
