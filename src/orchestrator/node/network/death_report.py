"""What a guardian reports when its agent has died: over the leader link, as that agent would have spoken."""

from __future__ import annotations

import contextlib
import select
import time
from dataclasses import dataclass, field

from orchestrator.node.agent.run import Run
from orchestrator.node.failure import Failure
from orchestrator.node.network.link import Hub, Spoke
from orchestrator.node.network.link_events import LinkOpened
from orchestrator.node.network.sockets import Sockets
from orchestrator.protocol.link import AgentEnded

REPORT_S = 2.0
"""By then an agent that has not heard it has drawn its own conclusion (RECONNECT_S in node/network/broken.py)."""
_TRY_EVERY_S = 0.02


def report(run: Run) -> None:
    """Report that this node's agent ended: a member's guardian to the leader's agent, the leader's to the members.

    Returns once everybody has heard it, or after REPORT_S.
    """
    obituary = DeathReport(run, time.monotonic() + REPORT_S)
    while not obituary.step(time.monotonic()):
        poll = select.poll()
        for descriptor, mask in obituary.side.descriptors():
            poll.register(descriptor, mask)
        poll.poll(_TRY_EVERY_S * 1000)


@dataclass
class DeathReport:
    """One guardian's side of the link, in its agent's place. until: then it is given up, monotonic seconds."""

    run: Run
    until: float
    sockets: Sockets = field(default_factory=Sockets)
    side: Hub | Spoke = field(init=False)
    _unaware: set[str] = field(default_factory=set)
    _listens: bool = False

    def __post_init__(self) -> None:
        run, key = self.run, self.run.link_key()
        self._unaware = set(run.members[1:])
        self.side = Hub(run, key, self.sockets) if run.leads else Spoke(run, key, run.leader_name, self.sockets)

    def step(self, now: float) -> bool:
        """Whatever can be done without waiting; True once it is over."""
        over = self._tell(now) or now >= self.until
        if over:
            self.side.close()
        return over

    def _tell(self, now: float) -> bool:
        """True once everybody has heard it."""
        if isinstance(self.side, Spoke):
            self.side.step(now)
            self.side.send(AgentEnded())
            return self.side.joined
        if not self._unaware or not self._at_the_port(self.side):
            return not self._unaware
        for event in self.side.step(now):
            if isinstance(event, LinkOpened):
                self.side.send(AgentEnded(), only=event.node)
                self._unaware.discard(event.node)
        return not self._unaware

    def _at_the_port(self, hub: Hub) -> bool:
        """That its agent has left: there they look for it."""
        if not self._listens:
            with contextlib.suppress(Failure):
                hub.listen()
                self._listens = True
        return self._listens
