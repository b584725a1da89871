"""Which agents an agent can still hear: tables of link events, with a simulated clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from orchestrator.node.agent.membership import (
    QUIET_S,
    AgentGone,
    Effect,
    GuardianReported,
    HasEnded,
    LeaseOver,
    Membership,
    Tick,
)
from orchestrator.node.network.broken import RECONNECT_S
from orchestrator.node.network.link_events import LinkClosed, LinkOpened, MessageReceived

LEASE_S = 20.0
ANCHOR = (1e9, 0.0)
LOST, CLOSED = LinkClosed("b", "Connection timed out", broken=False), LinkClosed("b", "closed", broken=True)


def leader(*others: str) -> Membership:
    """The leader's membership, with agents that all joined at second 100."""
    members = Membership("a", others, leads=True, lease_s=LEASE_S, anchor=ANCHOR)
    for other in others:
        assert members.step(100.0, LinkOpened(other)) == []
    return members


def member() -> Membership:
    members = Membership("b", ("a",), leads=False, lease_s=LEASE_S, anchor=ANCHOR)
    assert members.step(100.0, LinkOpened("a")) == []
    return members


def said(effects: Sequence[Effect]) -> list[tuple[type[Effect], str, str]]:
    return [(type(effect), effect.cause.node, effect.cause.text) for effect in effects]


def test_a_node_that_the_network_lost_keeps_its_lease() -> None:
    members = leader("b")
    assert members.step(100.0, LOST) == []
    assert members.step(100.0 + LEASE_S - 1, Tick()) == []
    assert members.links(100.0 + LEASE_S - 1) == {"b": "silent"}
    assert said(members.step(100.0 + LEASE_S + 1, Tick())) == [(LeaseOver, "b", "no heartbeat from b for 21 s")]


def test_an_end_does_not_wait_for_a_node_whose_lease_is_over() -> None:
    members = leader("b", "c")
    members.step(100.0 + LEASE_S, MessageReceived("c", {}))
    assert members.ending(100.0 + LEASE_S) == {"b", "c"}
    assert members.ending(101.0 + LEASE_S) == {"c"}
    members.step(101.0 + LEASE_S, HasEnded("c"))
    assert members.ending(101.0 + LEASE_S) == set()


def test_a_node_that_has_ended_has_no_lease() -> None:
    members = leader("b")
    members.step(100.0, HasEnded("b"))
    assert members.step(100.0, CLOSED) == []
    assert members.step(300.0, Tick()) == [] and members.links(300.0) == {"b": "ended"}
    members.step(300.0, LinkOpened("b"))
    assert len(members.step(300.0 + LEASE_S + 1, Tick())) == 1, "it is back, and has a lease again"


def test_who_hears_nobody_is_cut_off_itself() -> None:
    members = leader("b", "c")
    members.step(110.0, MessageReceived("b", {}))
    ((kind, node, text),) = said(members.step(100.0 + LEASE_S + 1, Tick()))
    assert (kind, node) == (
        LeaseOver,
        "a",
    ) and "no heartbeat from any other node for 21 s: a is disconnected" in text
    members = leader("b", "c")
    members.step(118.0, MessageReceived("b", {}))
    assert [node for _, node, _ in said(members.step(121.0, Tick()))] == ["c"]


def test_a_broken_connection_has_a_moment_to_come_back() -> None:
    members = leader("b")
    members.step(110.0, CLOSED)
    assert members.may_come_back() and members.step(110.0 + RECONNECT_S - 0.5, Tick()) == []
    members.step(111.6, LinkOpened("b"))
    assert members.step(120.0, Tick()) == [] and not members.may_come_back()
    members.step(120.0, CLOSED)
    assert said(members.step(120.0 + RECONNECT_S, Tick())) == [
        (AgentGone, "b", "the connection to the agent on b ended (closed), and no new connection was made for 2 s")
    ]
    assert members.step(300.0, Tick()) == [], "said once"


@pytest.mark.parametrize("refused", [True, False])
def test_a_member_judges_a_broken_connection_by_what_the_leaders_port_says(refused: bool) -> None:
    members = member()
    members.step(101.0, LinkClosed("a", "Connection reset", broken=True))
    told = said(members.step(101.0 + RECONNECT_S, Tick(refused)))
    assert told == [
        (
            AgentGone,
            "a",
            "the connection to the agent on a ended (Connection reset), and every new connection was refused for 2 s",
        )
    ] * int(refused)


def test_a_guardian_is_believed() -> None:
    members = leader("b")
    ((kind, node, text),) = said(members.step(100.0, GuardianReported("b")))
    assert (kind, node) == (AgentGone, "b") and "reported by its guardian process" in text


def test_links_in_one_word() -> None:
    members = leader("b", "c")
    members.step(100.0, LOST)
    assert members.links(100.5) == {"b": "lost", "c": "heard"}
    assert members.links(100.0 + QUIET_S + 0.5) == {"b": "lost", "c": "quiet"}
    assert members.links(111.0) == {"b": "silent", "c": "silent"} and members.silent(111.0) == ("b", "c")
