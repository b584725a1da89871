"""What a guardian concludes from its agent's messages, or their absence. Pure.

An agent that has ended has closed its end of the socket pair. A live one that is silent for as long as the gang's lease
(stopped by a signal, or stuck) has been given up by the other agents.
"""

from __future__ import annotations

from dataclasses import dataclass

BEAT = b"beat\n"
GO = b"go\n"
RELEASE = b"release\n"


@dataclass
class AgentWatch:
    """heard_at: when the agent was last heard, monotonic seconds; patience_s: how long it may be silent: at first the
    time that arming may take, then, once its loop runs, the lease."""

    heard_at: float
    patience_s: float
    lease_s: float
    released: bool = False
    """The agent ended as intended: this is no death."""
    gone: bool = False
    """The agent has closed its end."""

    def hear(self, now: float, words: bytes) -> bool:
        """Take the agent's message, b'' for end of file. Returns True if the engine is to be started."""
        if not words:
            self.gone = True
            return False
        self.heard_at = now
        self.released = self.released or RELEASE in words
        if BEAT in words:
            self.patience_s = self.lease_s
        return GO in words

    def is_silent(self, now: float) -> bool:
        """Whether the agent has been silent for too long: it must be killed with its engine."""
        return now - self.heard_at > self.patience_s

    def over(self, now: float) -> bool:
        """Whether there is no agent left to serve: all processes of the engine must be ended."""
        return self.gone or self.is_silent(now)

    def reports_death(self, now: float) -> bool:
        """Whether the other agents must be told. If the agent was silent, they have already given it up."""
        return not (self.released or self.is_silent(now))
