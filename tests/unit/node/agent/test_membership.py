"""Which agents an agent can still hear: tables of link events, with a simulated clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from orchestrator.node.agent.membership import QUIET_S, RECONNECT_S, LinkClosed, LinkOpened, Membership, MessageReceived
from orchestrator.protocol.report import Cause

LEASE_S = 20.0
EPOCH_S = 1e9
LOST, CLOSED = LinkClosed("b", "Connection timed out", broken=False), LinkClosed("b", "closed", broken=True)


def leader(*others: str) -> Membership:
    """The leader's membership, with agents that all joined at second 100."""
    members = Membership("a", others, leads=True, lease_s=LEASE_S, epoch_s=EPOCH_S)
    for other in others:
        members.hear(100.0, LinkOpened(other))
    return members


def member() -> Membership:
    members = Membership("b", ("a",), leads=False, lease_s=LEASE_S, epoch_s=EPOCH_S)
    members.hear(100.0, LinkOpened("a"))
    return members


def said(causes: Sequence[Cause]) -> list[tuple[str, str]]:
    return [(cause.node, cause.text) for cause in causes]


def test_a_node_that_the_network_lost_keeps_its_lease() -> None:
    members = leader("b")
    members.hear(100.0, LOST)
    assert members.lost(100.0 + LEASE_S - 1) == []
    assert members.links(100.0 + LEASE_S - 1) == {"b": "silent"}
    assert said(members.lost(100.0 + LEASE_S + 1)) == [("b", "no heartbeat from b for 21 s")]


def test_an_end_does_not_wait_for_a_node_whose_lease_is_over() -> None:
    members = leader("b", "c")
    members.hear(100.0 + LEASE_S, MessageReceived("c", {}))
    assert members.ending(100.0 + LEASE_S) == {"b", "c"}
    assert members.ending(101.0 + LEASE_S) == {"c"}
    members.ended.add("c")
    assert members.ending(101.0 + LEASE_S) == set()


def test_a_node_that_has_ended_has_no_lease() -> None:
    members = leader("b")
    members.ended.add("b")
    members.hear(100.0, CLOSED)
    assert members.lost(300.0) == [] and members.links(300.0) == {"b": "ended"}
    members.hear(300.0, LinkOpened("b"))
    assert len(members.lost(300.0 + LEASE_S + 1)) == 1, "it is back, and has a lease again"


def test_who_hears_nobody_is_cut_off_itself() -> None:
    members = leader("b", "c")
    members.hear(110.0, MessageReceived("b", {}))
    ((node, text),) = said(members.lost(100.0 + LEASE_S + 1))
    assert node == "a" and "no heartbeat from any other node for 21 s: a is disconnected" in text
    members = leader("b", "c")
    members.hear(118.0, MessageReceived("b", {}))
    assert [node for node, _ in said(members.lost(121.0))] == ["c"]


def test_a_broken_connection_has_a_moment_to_come_back() -> None:
    members = leader("b")
    members.hear(110.0, CLOSED)
    assert members.may_come_back() and members.lost(110.0 + RECONNECT_S - 0.5) == []
    members.hear(111.6, LinkOpened("b"))
    assert members.lost(120.0) == [] and not members.may_come_back()
    members.hear(120.0, CLOSED)
    assert said(members.lost(120.0 + RECONNECT_S)) == [
        ("b", "the connection to the agent on b ended (closed), and no new connection was made for 2 s")
    ]
    assert members.lost(300.0) == [], "said once"


@pytest.mark.parametrize("refused", [True, False])
def test_a_member_judges_a_broken_connection_by_what_the_leaders_port_says(refused: bool) -> None:
    members = member()
    members.hear(101.0, LinkClosed("a", "Connection reset", broken=True))
    told = said(members.lost(101.0 + RECONNECT_S, refused=refused))
    assert told == [
        ("a", "the connection to the agent on a ended (Connection reset), and every new connection was refused for 2 s")
    ] * int(refused)


def test_links_in_one_word() -> None:
    members = leader("b", "c")
    members.hear(100.0, LOST)
    assert members.links(100.5) == {"b": "lost", "c": "heard"}
    assert members.links(100.0 + QUIET_S + 0.5) == {"b": "lost", "c": "quiet"}
    assert members.links(111.0) == {"b": "silent", "c": "silent"} and members.silent(111.0) == ("b", "c")
