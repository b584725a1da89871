"""What a guardian reports when its agent has died: over the leader link, as that agent would have spoken."""

from __future__ import annotations

import select
import time

from orchestrator.node.agent.run import Run
from orchestrator.node.failure import Failure
from orchestrator.node.network.link import Hub, Joined, Spoke
from orchestrator.protocol.link import AgentEnded

REPORT_S = 2.0
"""Then whoever has not heard it has drawn its own conclusion (RECONNECT_S in node/network/broken.py)."""
_TRY_EVERY_S = 0.02


def report(run: Run) -> None:
    """Report that this node's agent ended: a member's guardian to the leader's agent, the leader's to the members.

    Returns once everybody has heard it, or after REPORT_S.
    """
    until, key = time.monotonic() + REPORT_S, run.link_key()
    if not run.leads:
        _to_leader(Spoke(run, key, run.members[0] if run.members else "the leader"), until)
    elif len(run.members) > 1:
        _to_members(Hub(run, key), set(run.members[1:]), until)


def _to_leader(spoke: Spoke, until: float) -> None:
    while not spoke.joined and time.monotonic() < until:
        spoke.step(time.monotonic())
        _wait(spoke)
    spoke.send(AgentEnded())
    spoke.close()


def _to_members(hub: Hub, members: set[str], until: float) -> None:
    """At the port that its agent has left: there they look for it."""
    while not _listens(hub) and time.monotonic() < until:
        time.sleep(_TRY_EVERY_S)
    while members and time.monotonic() < until:
        for event in hub.step(time.monotonic()):
            if isinstance(event, Joined):
                hub.send(AgentEnded(), only=event.node)
                members.discard(event.node)
        _wait(hub)
    hub.close()


def _listens(hub: Hub) -> bool:
    try:
        hub.listen()
    except Failure:
        return False
    return True


def _wait(side: Hub | Spoke) -> None:
    poll = select.poll()
    for descriptor, mask in side.descriptors():
        poll.register(descriptor, mask)
    poll.poll(_TRY_EVERY_S * 1000)
