"""Which node is named as the one cause: tables of the nodes' reports, with a simulated clock."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.support.messages import message

from orchestrator.node.agent.causes import Statement, Weight
from orchestrator.node.agent.verdicts import (
    ANSWER_S,
    HOLD_S,
    SETTLE_S,
    AccountReceived,
    Effect,
    Fail,
    LeaderVerdict,
    MemberAccount,
    MemberGone,
    OwnFailure,
    PlainEffect,
    PlainEvent,
    SendVerdict,
    Tell,
    VerdictReceived,
    choose,
)
from orchestrator.protocol.link import MEMBERS, Account, heard
from orchestrator.protocol.report import Cause

OTHERS = frozenset({"node1", "node2", "node3"})


def seen(node: str, **more: Any) -> Statement:
    return Statement(Cause(node=node, text=f"TP of {node} was killed", at=1.0, signal=9, **more), Weight.SEEN)


def unsure(node: str, *blames: str) -> Statement:
    return Statement(
        Cause(node=node, text=f"TP of {node} exited with code 0", at=1.0, exit_code=0), Weight.UNSURE, blames
    )


def followed(node: str, *blames: str) -> Statement:
    return Statement(Cause(node=node, text="a peer went away", at=1.0, secondary=True), Weight.FOLLOWED, blames)


def rulings(effects: Sequence[Effect]) -> list[str]:
    return [effect.verdict.node for effect in effects if isinstance(effect, SendVerdict)]


def only(effects: Sequence[Effect]) -> Any:
    (effect,) = effects
    return effect


def test_a_secondary_account_asks_everybody_and_the_killed_ranks_node_is_named() -> None:
    """As recorded on four H200: node3 is the first to fail, node1's rank was killed before."""
    attribution = LeaderVerdict("node0")
    assert attribution.step(10.0, AccountReceived("node3", followed("node3", "node1")), OTHERS) == [
        PlainEffect.ASK_MEMBERS,
        PlainEffect.LOOK,
    ]
    assert attribution.step(10.0, PlainEvent.LOOK_DONE, OTHERS) == []
    assert attribution.step(10.002, AccountReceived("node2", None), OTHERS) == []
    ruled = attribution.step(10.003, AccountReceived("node1", seen("node1", tp_rank=1)), OTHERS)
    assert rulings(ruled) == ["node1"]
    rule = only(ruled)
    assert (rule.verdict.tp_rank, rule.verdict.signal) == (1, 9)
    assert rule.cause.secondary and rule.cause.node == "node0"
    assert attribution.step(10.1, AccountReceived("node2", seen("node2")), OTHERS) == [], "it rules once"


def test_a_first_hand_account_waits_for_all_answers_within_a_bound() -> None:
    attribution = LeaderVerdict("node0")
    attribution.step(10.0, AccountReceived("node1", seen("node1")), OTHERS)
    assert attribution.step(10.01, AccountReceived("node2", None), OTHERS) == []
    assert attribution.step(10.0 + ANSWER_S / 2, PlainEvent.TICK, OTHERS) == [], "node3 has not answered"
    assert rulings(attribution.step(10.0 + ANSWER_S, PlainEvent.TICK, OTHERS)) == ["node1"]


@pytest.mark.parametrize("lost", [(MemberGone("node3"), OTHERS), (PlainEvent.TICK, OTHERS - {"node3"})])
def test_nobody_waits_for_a_node_that_is_gone(lost: Any) -> None:
    attribution = LeaderVerdict("node0")
    attribution.step(10.0, AccountReceived("node1", seen("node1")), OTHERS)
    attribution.step(10.0, AccountReceived("node2", None), OTHERS)
    event, joined = lost
    assert rulings(attribution.step(10.01, event, joined)) == ["node1"]


def test_without_a_first_hand_account_the_bound_is_waited_for() -> None:
    attribution = LeaderVerdict("node0")
    attribution.step(10.0, OwnFailure(followed("node0", "node2")), OTHERS)
    for node in OTHERS:
        assert (
            attribution.step(10.1, AccountReceived(node, followed(node, "node2") if node == "node1" else None), OTHERS)
            == []
        )
    assert attribution.step(10.0 + SETTLE_S - 0.01, PlainEvent.TICK, OTHERS) == []
    rule = only(attribution.step(10.0 + SETTLE_S, PlainEvent.TICK, OTHERS))
    assert rule.verdict.node == "node2" and rule.verdict.secondary
    assert rule.verdict.text == "node0 lost its connection to node2: a peer went away"


def test_the_leaders_own_first_hand_cause_is_its_own() -> None:
    attribution = LeaderVerdict("node0")
    own = seen("node0", tp_rank=0)
    assert attribution.step(1.0, OwnFailure(own), frozenset()) == [PlainEffect.ASK_MEMBERS, PlainEffect.LOOK]
    rule = only(attribution.step(1.0, PlainEvent.LOOK_DONE, frozenset()))
    assert rule == SendVerdict(own.cause, own.cause)


def test_a_later_and_nearer_account_of_a_node_replaces_its_first() -> None:
    attribution = LeaderVerdict("node0")
    attribution.step(1.0, AccountReceived("node1", unsure("node1")), OTHERS)
    attribution.step(1.1, AccountReceived("node1", seen("node1", tp_rank=4)), OTHERS)
    attribution.step(1.1, AccountReceived("node1", followed("node1")), OTHERS)
    rule = only(attribution.step(1.0 + SETTLE_S, PlainEvent.TICK, OTHERS))
    assert rule.verdict.tp_rank == 4


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ([followed("node3", "node1"), seen("node1"), followed("node2", "node3")], "node1"),
        ([unsure("node3", "node1"), unsure("node1", "node1"), followed("node2", "node1")], "node1"),
        ([unsure("node3", "node1"), unsure("node1")], "node1"),
        ([unsure("node2"), followed("node0"), followed("node3")], "node2"),
        ([seen("node2"), seen("node1")], "node2"),
        ([followed("node3", "node1"), followed("node2", "node3"), followed("node0", "node1")], "node1"),
        ([followed("node3"), followed("node2")], "node3"),
        ([followed("node2", "node2")], "node2"),
    ],
)
def test_the_account_nearest_to_the_beginning_is_chosen(told: list[Statement], named: str) -> None:
    assert choose({statement.node: statement for statement in told}).node == named


LEADER = frozenset({"node0"})


def test_a_member_says_what_it_saw_first_hand_and_fails_at_once() -> None:
    own = seen("node1")
    assert MemberAccount("node1").step(5.0, OwnFailure(own), LEADER) == [Tell(own), Fail(own.cause)]


@pytest.mark.parametrize("own", [unsure("node1"), followed("node1", "node2")])
def test_a_member_that_is_unsure_waits_for_the_verdict(own: Statement) -> None:
    witness = MemberAccount("node1")
    assert witness.step(5.0, OwnFailure(own), LEADER) == [Tell(own)]
    assert witness.step(5.5, OwnFailure(own), LEADER) == [], "said once"
    end = only(witness.step(5.6, VerdictReceived(seen("node2").cause), LEADER))
    assert isinstance(end, Fail) and end.cause.secondary and "node2 failed" in end.cause.text


def test_a_member_that_is_named_keeps_its_own_account_and_one_that_only_followed_does_not() -> None:
    for own, kept in ((unsure("node1"), True), (followed("node1"), False)):
        witness = MemberAccount("node1")
        witness.step(5.0, OwnFailure(own), LEADER)
        end = only(witness.step(5.1, VerdictReceived(replace(own.cause, text="in the leader's words")), LEADER))
        assert isinstance(end, Fail) and (end.cause == own.cause) is kept


def test_a_member_without_a_word_from_its_leader_names_what_it_has() -> None:
    witness = MemberAccount("node1")
    own = followed("node1")
    witness.step(5.0, OwnFailure(own), LEADER)
    assert witness.step(5.0 + HOLD_S - 0.1, PlainEvent.TICK, LEADER) == []
    assert witness.step(5.0 + HOLD_S, PlainEvent.TICK, LEADER) == [Fail(own.cause)]
    assert MemberAccount("node1").step(5.0, OwnFailure(own), frozenset()) == [Fail(own.cause)], "not connected"


def test_what_is_seen_after_a_connection_broke_waits_for_what_became_of_it() -> None:
    """The other end's agent may have gone first, and its guardian be late to say so on a busy machine."""
    own, witness = seen("node1"), MemberAccount("node1")
    assert witness.step(5.0, OwnFailure(own), frozenset(), broken=True) == []
    assert witness.step(6.9, PlainEvent.TICK, frozenset(), broken=True) == []
    assert witness.step(6.9, PlainEvent.TICK, LEADER) == [Tell(own), Fail(own.cause)], "it is back"
    alone = MemberAccount("node1")
    assert alone.step(5.0, OwnFailure(own), frozenset(), broken=True) == []
    assert alone.step(7.0, PlainEvent.TICK, frozenset()) == [Fail(own.cause)], "nobody knows what became of it"
    leader = LeaderVerdict("node0")
    assert leader.step(5.0, OwnFailure(seen("node0")), frozenset(), broken=True) == [
        PlainEffect.ASK_MEMBERS,
        PlainEffect.LOOK,
    ]
    assert leader.step(6.5, PlainEvent.TICK, frozenset(), broken=True) == []
    assert isinstance(only(leader.step(7.0, PlainEvent.TICK, frozenset())), SendVerdict)


def test_a_member_looks_before_it_answers() -> None:
    witness = MemberAccount("node1")
    assert witness.step(5.0, PlainEvent.LEADER_ASKED, LEADER) == [PlainEffect.LOOK]
    assert witness.step(5.0, PlainEvent.LOOK_DONE, LEADER) == [Tell(None)]
    own = unsure("node1")
    witness.step(5.1, OwnFailure(own), LEADER)
    assert witness.step(5.2, PlainEvent.LOOK_DONE, LEADER) == [Tell(own)]


@pytest.mark.parametrize("own", [seen("a"), unsure("a", "b"), followed("a", "b", "c")])
def test_an_account_travels(own: Statement) -> None:
    account = heard(MEMBERS, json.loads(json.dumps(own.account().as_json())))
    assert isinstance(account, Account) and Statement.of(account) == own


def test_a_message_without_a_cause_is_no_account() -> None:
    assert Statement.of(Account()) is None


@pytest.mark.parametrize(("secondary", "weight"), [(True, Weight.FOLLOWED), (False, Weight.SEEN)])
@pytest.mark.parametrize("given", [{}, {"weight": 9}, {"weight": None}])
def test_an_account_without_a_weight_is_weighed_by_its_cause(given: Any, secondary: bool, weight: Weight) -> None:
    told = Statement.of(message(Account, {"cause": {"node": "a", "text": "", "secondary": secondary}, **given}))
    assert told is not None and (told.weight, told.blames) == (weight, ())
