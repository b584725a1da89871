"""The course of one node's part, and which node is named as the one cause: tables of events and resulting actions,
without processes and with a simulated clock."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.support import messages
from tests.support.gang import linked_run

from orchestrator.node.agent.causes import WeighedCause, Weight, choose
from orchestrator.node.agent.lifecycle import Effect, Facts, Lifecycle, PlainEffect, PlainEvent, Send
from orchestrator.node.agent.membership import RECONNECT_S, Event, LinkClosed, LinkOpened, MessageReceived
from orchestrator.node.agent.sides import ANSWER_S, FOLLOW_LEADER_S, HOLD_S, LEADERS_CHECKS_S, LINK_S, SETTLE_S, part_of
from orchestrator.protocol.link import (
    MEMBERS,
    Account,
    AgentEnded,
    Ask,
    Digest,
    Drain,
    End,
    Ended,
    Go,
    Pulse,
    Stop,
    heard,
)
from orchestrator.protocol.message import Message
from orchestrator.protocol.report import AgentState, Cause
from orchestrator.protocol.run_files import GoalOrder

EPOCH_S = 1e9
COMPLETE = Facts(complete=True)
KILLED = Cause(node="b", tp_rank=2, signal=9, text="TP2 was killed", at=1.0)
RESET = LinkClosed("b", "Connection reset by peer", broken=True)


def part(node: str, state: str = "ready", **more: Any) -> Lifecycle:
    """a leads; its only member b has joined at second 100."""
    made = part_of(linked_run(node, **{"lease_s": 20.0, **more}), EPOCH_S)
    made.step(100.0, PlainEvent.CHECKS_PASSED)
    made.step(100.0, LinkOpened("b" if node == "a" else "a"))
    made.state, made.engine_runs = AgentState(state), state in ("starting", "warming", "ready", "draining")
    return made


def says(node: str, message: Message) -> MessageReceived:
    return MessageReceived(node, message.as_json())


def sent(effects: Sequence[Effect]) -> list[Message]:
    return [effect.message for effect in effects if isinstance(effect, Send)]


def entered(effects: Sequence[Effect]) -> list[str]:
    return [effect.value for effect in effects if isinstance(effect, AgentState)]


def test_a_leader_is_armed_at_once_and_a_member_once_it_has_joined() -> None:
    leader, member = (part_of(linked_run(node), EPOCH_S) for node in "ab")
    assert leader.step(1.0, PlainEvent.TICK) == [], "its checks go on"
    assert entered(leader.step(2.0, PlainEvent.CHECKS_PASSED)) == ["armed"]
    assert entered(member.step(2.0, PlainEvent.CHECKS_PASSED)) == []
    assert entered(member.step(2.0, PlainEvent.TICK)) == []
    member.step(3.0, LinkOpened("a"))
    assert entered(member.step(3.0, PlainEvent.TICK)) == ["armed"]


@pytest.mark.parametrize(("reached", "patience_s"), [(False, LINK_S), (True, LEADERS_CHECKS_S)])
def test_a_leader_whose_port_answers_may_still_be_checking(reached: bool, patience_s: float) -> None:
    member = part_of(linked_run("b"), EPOCH_S)
    member.step(100.0, PlainEvent.CHECKS_PASSED)
    facts = Facts(reached=reached, trouble="connection refused" if reached else "")
    assert member.step(100.0 + patience_s - 1, PlainEvent.TICK, facts) == []
    assert entered(member.step(100.0 + patience_s + 1, PlainEvent.TICK, facts)) == ["failed"]
    assert member.cause is not None and "does not respond" in member.cause.text and member.cause.secondary
    assert member.cause.text.endswith("(connection refused)" if reached else "(no answer)")


def test_a_leader_of_a_release_that_can_not_be_followed_is_not_waited_for() -> None:
    member = part_of(linked_run("b"), EPOCH_S)
    member.step(100.0, PlainEvent.CHECKS_PASSED)
    misfit = "is l40s-deploy 7.1.0, newer than this one (0.1.0)"
    member.step(100.1, PlainEvent.TICK, Facts(misfit=misfit))
    assert member.cause is not None and member.cause.secondary
    assert member.cause.text == f"the leader's agent {misfit}"
    assert "`l40s-deploy down " in member.cause.fix


def test_armed_and_forgotten_it_ends() -> None:
    leader = part("a", "armed", armed_for_s=120.0, lease_s=900.0)
    assert leader.step(219.0, PlainEvent.TICK) == []
    assert entered(leader.step(221.0, PlainEvent.TICK)) == ["stopping"]


def test_go_starts_the_leaders_engine_and_everybody_elses() -> None:
    leader, member = part("a", "armed"), part("b", "armed")
    go = GoalOrder(goal="run")
    assert leader.step(101.0, go) == [PlainEffect.START_ENGINE, AgentState.STARTING, Send(Go())]
    assert leader.step(101.1, go) == [], "the order lies there still"
    assert member.step(101.0, says("a", Go())) == [PlainEffect.START_ENGINE, AgentState.STARTING]


def test_ready_is_when_every_rank_of_every_node_lives_and_the_canary_was_accepted() -> None:
    leader, member = part("a", "starting"), part("b", "starting")
    assert entered(leader.step(101.0, PlainEvent.SERVICE_HEALTHY)) == ["warming"]
    assert entered(member.step(101.0, says("a", Pulse(state=AgentState.WARMING)), COMPLETE)) == ["warming"]
    assert leader.step(102.0, PlainEvent.CANARY_ACCEPTED, COMPLETE) == [], "another's ranks are missing"
    leader.step(102.5, says("b", Digest(state=AgentState.WARMING, complete=True)))
    assert leader.step(102.5, PlainEvent.TICK) == [], "its own rank is missing"
    assert entered(leader.step(103.0, PlainEvent.TICK, COMPLETE)) == ["ready"]
    assert member.step(103.0, says("a", Pulse(state=AgentState.READY))) == []
    assert entered(member.step(104.0, says("a", Pulse(state=AgentState.READY)), COMPLETE)) == ["ready"]


def test_a_complete_gang_is_ready_at_its_canary_and_not_at_the_next_tick() -> None:
    leader = part("a", "starting")
    leader.step(101.0, PlainEvent.SERVICE_HEALTHY)
    leader.step(101.5, says("b", Digest(state=AgentState.WARMING, complete=True)))
    assert leader.step(102.0, PlainEvent.TICK, COMPLETE) == []
    assert entered(leader.step(102.1, PlainEvent.CANARY_ACCEPTED, COMPLETE)) == ["ready"]


@pytest.mark.parametrize(
    ("state", "missed"),
    [("armed", []), ("starting", [Go()]), ("ready", [Go()]), ("draining", [Drain()]), ("stopping", [End(now=True)])],
)
def test_one_that_connects_again_is_told_what_it_missed(state: str, missed: list[Message]) -> None:
    effects = part("a", state).step(101.0, LinkOpened("b"))
    assert [(effect.message, effect.only) for effect in effects if isinstance(effect, Send)] == [
        (message, "b") for message in missed
    ]


def test_one_that_connects_after_the_verdict_hears_it() -> None:
    leader = part("a")
    leader.step(101.0, KILLED)
    assert sent(leader.step(102.0, LinkOpened("b"))) == [End(verdict=KILLED)]


def test_a_death_is_told_the_leader_asks_and_rules_once() -> None:
    leader, member = part("a"), part("b")
    statement = WeighedCause(KILLED, Weight.SEEN)
    told = member.step(101.0, statement)
    assert sent(told) == [statement.account()] and entered(told) == ["failed"]
    assert leader.step(101.0, says("b", statement.account())) == [Send(Ask()), PlainEffect.LOOK]
    ruled = leader.step(101.0, PlainEvent.LOOK_DONE)
    assert sent(ruled) == [End(verdict=KILLED)] and entered(ruled) == ["failed"]
    assert leader.verdict == KILLED and leader.cause is not None and leader.cause.secondary
    assert member.step(101.2, says("a", End(verdict=KILLED))) == [] and member.verdict == KILLED


def test_a_death_while_the_link_is_made_again_is_told_once_it_is() -> None:
    """Found under load: the member's rank died between its connection and the leader's welcome; the leader was not
    informed, and its ranks kept running for ever."""
    member = part("b")
    member.step(101.0, LinkClosed("a", "Connection reset by peer", broken=True))
    statement = WeighedCause(KILLED, Weight.SEEN)
    assert member.step(102.0, statement) == []
    told = member.step(102.0, LinkOpened("a"))
    assert sent(told) == [statement.account()] and entered(told) == ["failed"]


def test_a_death_after_the_leaders_agent_is_not_the_cause() -> None:
    """Its ranks died with it, and ours of that; its guardian may say so later than ours are seen dead."""
    member = part("b")
    member.step(101.0, LinkClosed("a", "Connection reset by peer", broken=True))
    assert member.step(101.4, WeighedCause(KILLED, Weight.SEEN)) == []
    effects = member.step(102.5, says("a", AgentEnded()))
    assert entered(effects) == ["failed"] and member.cause is not None and member.cause.node == "a"


@pytest.mark.parametrize("cause", [KILLED, None])
def test_a_member_that_has_ended_ends_the_gang_whatever_was_lost_on_the_way(cause: Cause | None) -> None:
    leader = part("a")
    leader.step(101.0, says("b", Ended(state=AgentState.FAILED, cause=cause)))
    leader.step(101.0, PlainEvent.LOOK_DONE)
    leader.step(101.0 + SETTLE_S, PlainEvent.TICK)
    assert leader.state is AgentState.FAILED and leader.verdict is not None
    assert leader.verdict == cause or "without a reported cause" in leader.verdict.text


def test_a_member_that_was_stopped_stops_the_gang() -> None:
    leader = part("a")
    effects = leader.step(101.0, says("b", Ended(state=AgentState.STOPPED)))
    assert sent(effects) == [End(now=True)] and entered(effects) == ["stopping"]


def test_stop_drains_the_leaders_engine_first_and_the_others_follow() -> None:
    leader, member = part("a"), part("b")
    stop = GoalOrder(goal="stop")
    assert member.step(101.0, stop) == [Send(Stop()), AgentState.DRAINING]
    assert leader.step(101.0, says("b", Stop())) == [AgentState.DRAINING, Send(Drain()), PlainEffect.ASK_ENGINE_TO_END]
    assert leader.step(102.0, PlainEvent.TICK) == []
    leader.step(103.0, PlainEvent.ENGINE_GONE)
    assert leader.step(103.0, PlainEvent.TICK) == [Send(End()), AgentState.STOPPING]
    member.step(103.0, says("a", End()))
    assert member.step(103.0 + FOLLOW_LEADER_S / 2, PlainEvent.TICK) == []
    assert entered(member.step(103.1 + FOLLOW_LEADER_S, PlainEvent.TICK)) == ["stopping"]
    assert member.stopped() and member.state is AgentState.STOPPED


def test_a_drain_ends_where_nothing_runs_any_more_or_nobody_leads() -> None:
    member = part("b", "draining")
    assert entered(member.step(101.0, PlainEvent.TICK, Facts(living=False))) == ["stopping"]
    member = part("b", "draining")
    assert entered(member.step(101.0, says("a", AgentEnded()))) == ["stopping"]
    member = part("b", "draining")
    assert entered(member.step(101.0, says("a", End(verdict=KILLED)))) == ["stopping"]
    assert member.verdict == KILLED


def test_stop_at_once_tells_everybody_and_an_order_may_name_what_nobody_saw() -> None:
    for node, message in (("a", End(now=True)), ("b", Stop(now=True))):
        effects = part(node).step(101.0, GoalOrder(goal="stop-now"))
        assert effects == [Send(message), AgentState.STOPPING]
    leader = part("a")
    because = Cause(node="b", text="it was lost", fix="look there")
    leader.step(101.0, GoalOrder(goal="stop-now", because=because))
    assert leader.state is AgentState.FAILED
    assert leader.verdict is not None and (leader.verdict.node, leader.verdict.text) == ("b", "it was lost")


def test_a_broken_connection_and_a_lease_end_the_part() -> None:
    events: list[tuple[float, Event | PlainEvent]] = [(101.0, RESET), (101.0 + RECONNECT_S, PlainEvent.TICK)]
    for happened, words in (
        (events, "no new connection was made for 2 s"),
        ([(121.0, PlainEvent.TICK)], "no heartbeat from "),
    ):
        leader = part("a")
        for now, event in happened:
            leader.step(now, event)
        assert leader.verdict is not None and words in leader.verdict.text and leader.verdict.node == "b"


@pytest.mark.parametrize("state", ["stopping", "failed", "stopped"])
def test_what_is_over_starts_nothing_and_fails_no_more(state: str) -> None:
    for node, other in ("ab", "ba"):
        one = part(node, state)
        for event in (
            GoalOrder(goal="run"), GoalOrder(goal="stop"),
            KILLED, PlainEvent.TICK,
            says(other, Go()), says(other, Stop()), says(other, Drain()), says(other, AgentEnded()),
        ):  # fmt: skip
            effects = one.step(500.0, event)
            assert not any(isinstance(effect, (PlainEffect, AgentState, Send)) for effect in effects), event
        assert one.state == state


def test_what_comes_late_may_still_be_nearer_to_the_cause() -> None:
    leader = part("a")
    leader.step(101.0, replace(KILLED, node="a", secondary=True))
    leader.step(101.1, says("b", Account(type="failed", cause=KILLED)))
    assert leader.verdict == KILLED


OTHERS = ("node1", "node2", "node3")


def seen(node: str, **more: Any) -> WeighedCause:
    return WeighedCause(Cause(node=node, text=f"TP of {node} was killed", at=1.0, signal=9, **more), Weight.SEEN)


def unsure(node: str, *blames: str) -> WeighedCause:
    return WeighedCause(
        Cause(node=node, text=f"TP of {node} exited with code 0", at=1.0, exit_code=0), Weight.UNSURE, blames
    )


def followed(node: str, *blames: str) -> WeighedCause:
    return WeighedCause(Cause(node=node, text="a peer went away", at=1.0, secondary=True), Weight.FOLLOWED, blames)


def leader_of_three() -> Lifecycle:
    """It serves, and everybody is connected."""
    run = replace(linked_run("a"), node="node0", members=("node0", *OTHERS))
    leader = part_of(run, EPOCH_S)
    leader.state = AgentState.READY
    for node in OTHERS:
        leader.step(9.0, LinkOpened(node))
    return leader


def tells(told: WeighedCause | None, node: str = "") -> MessageReceived:
    return says(node or told.node, told.account()) if told is not None else says(node, Account())


def ruled(leader: Lifecycle, effects: Sequence[Effect]) -> str:
    """The node that the leader names to everybody now; '' for none yet."""
    assert sent(effects) in ([], [End(verdict=leader.verdict)])
    return leader.verdict.node if leader.verdict is not None and effects else ""


ASKS = [Send(Ask()), PlainEffect.LOOK]


def test_a_secondary_account_asks_everybody_and_the_killed_ranks_node_is_named() -> None:
    """As recorded on four H200: node3 is the first to fail, node1's rank was killed before."""
    leader = leader_of_three()
    assert leader.step(10.0, tells(followed("node3", "node1"))) == ASKS
    assert leader.step(10.0, PlainEvent.LOOK_DONE) == []
    assert leader.step(10.002, tells(None, "node2")) == []
    assert ruled(leader, leader.step(10.003, tells(seen("node1", tp_rank=1)))) == "node1"
    assert leader.verdict == seen("node1", tp_rank=1).cause
    assert leader.cause is not None and leader.cause.secondary and leader.cause.node == "node0"
    assert leader.step(10.1, tells(seen("node2"))) == [] and leader.verdict.node == "node1", "it rules once"


def test_a_first_hand_account_waits_for_all_answers_within_a_bound() -> None:
    leader = leader_of_three()
    leader.step(10.0, tells(seen("node1")))
    assert leader.step(10.01, tells(None, "node2")) == []
    assert leader.step(10.0 + ANSWER_S / 2, PlainEvent.TICK) == [], "node3 has not answered"
    assert ruled(leader, leader.step(10.0 + ANSWER_S, PlainEvent.TICK)) == "node1"


def test_nobody_waits_for_a_node_that_is_gone() -> None:
    leader = leader_of_three()
    leader.step(10.0, tells(seen("node1")))
    leader.step(10.0, tells(None, "node2"))
    assert ruled(leader, leader.step(10.01, LinkClosed("node3", "silence", broken=False))) == "node1"


def test_without_a_first_hand_account_the_bound_is_waited_for() -> None:
    leader = leader_of_three()
    leader.step(10.0, followed("node0", "node2"))
    for node in OTHERS:
        assert leader.step(10.1, tells(followed(node, "node2") if node == "node1" else None, node)) == []
    assert leader.step(10.0 + SETTLE_S - 0.01, PlainEvent.TICK) == []
    assert ruled(leader, leader.step(10.0 + SETTLE_S, PlainEvent.TICK)) == "node2"
    assert leader.verdict is not None and leader.verdict.secondary
    assert leader.verdict.text == "node0 lost its connection to node2: a peer went away"


def test_the_leaders_own_first_hand_cause_is_its_own() -> None:
    leader, own = part_of(linked_run("a"), EPOCH_S), seen("a", tp_rank=0)
    leader.state = AgentState.READY
    assert leader.step(1.0, own) == ASKS
    assert ruled(leader, leader.step(1.0, PlainEvent.LOOK_DONE)) == "a"
    assert leader.verdict == leader.cause == own.cause


def test_a_later_and_nearer_account_of_a_node_replaces_its_first() -> None:
    leader = leader_of_three()
    for now, told in ((10.0, unsure("node1")), (10.1, seen("node1", tp_rank=4)), (10.1, followed("node1"))):
        leader.step(now, tells(told))
    leader.step(10.0 + SETTLE_S, PlainEvent.TICK)
    assert leader.verdict is not None and leader.verdict.tp_rank == 4


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
def test_the_account_nearest_to_the_beginning_is_chosen(told: list[WeighedCause], named: str) -> None:
    assert choose({statement.node: statement for statement in told}).node == named


@pytest.mark.parametrize("own", [unsure("b"), followed("b", "a")])
def test_a_member_that_is_unsure_waits_for_the_verdict(own: WeighedCause) -> None:
    member = part("b")
    assert member.step(105.0, own) == [Send(own.account())]
    assert member.step(105.5, own) == [], "said once"
    assert entered(member.step(105.6, says("a", End(verdict=seen("a").cause)))) == ["failed"]
    assert member.cause is not None and member.cause.secondary and "a failed" in member.cause.text


@pytest.mark.parametrize(("own", "kept"), [(unsure("b"), True), (followed("b"), False)])
def test_a_member_that_is_named_keeps_its_own_account_unless_it_only_followed(own: WeighedCause, kept: bool) -> None:
    member = part("b")
    member.step(105.0, own)
    member.step(105.1, says("a", End(verdict=replace(own.cause, text="in the leader's words"))))
    assert (member.cause == own.cause) is kept


def test_a_member_without_a_word_from_its_leader_names_what_it_has() -> None:
    member, own = part("b"), followed("b")
    member.step(105.0, own)
    assert member.step(105.0 + HOLD_S - 0.1, PlainEvent.TICK) == []
    assert entered(member.step(105.0 + HOLD_S, PlainEvent.TICK)) == ["failed"] and member.cause == own.cause
    alone = part("b")
    alone.step(105.0, LinkClosed("a", "silence", broken=False))
    assert entered(alone.step(105.0, own)) == ["failed"], "not connected"


def test_what_is_seen_after_a_connection_broke_waits_for_what_became_of_it() -> None:
    """The other end's agent may have gone first, and its guardian be late to say so on a busy machine. Here nobody
    says what became of it, and something still listens there."""
    member, own = part("b"), seen("b")
    member.step(105.0, LinkClosed("a", "reset", broken=True))
    assert member.step(105.0, own) == member.step(106.9, PlainEvent.TICK) == []
    assert entered(member.step(105.0 + RECONNECT_S, PlainEvent.TICK)) == ["failed"] and member.cause == own.cause
    leader = leader_of_three()
    leader.step(10.0, LinkClosed("node3", "reset", broken=True))
    assert leader.step(10.0, seen("node0")) == ASKS
    for node in ("node1", "node2"):
        assert leader.step(10.1, tells(None, node)) == []
    leader.step(11.0, LinkOpened("node3"))
    assert leader.verdict is not None and leader.verdict.node == "node0", "it is back"


def test_a_member_looks_before_it_answers() -> None:
    member, own = part("b"), unsure("b")
    assert member.step(105.0, says("a", Ask())) == [PlainEffect.LOOK]
    assert member.step(105.0, PlainEvent.LOOK_DONE) == [Send(Account())]
    member.step(105.1, own)
    assert member.step(105.2, PlainEvent.LOOK_DONE) == [Send(own.account())]


@pytest.mark.parametrize("own", [seen("a"), unsure("a", "b"), followed("a", "b", "c")])
def test_an_account_travels(own: WeighedCause) -> None:
    account = heard(MEMBERS, json.loads(json.dumps(own.account().as_json())))
    assert isinstance(account, Account) and WeighedCause.of(account) == own


@pytest.mark.parametrize(("secondary", "weight"), [(True, Weight.FOLLOWED), (False, Weight.SEEN)])
@pytest.mark.parametrize("given", [{}, {"weight": 9}, {"weight": None}])
def test_an_account_without_a_weight_is_weighed_by_its_cause(given: Any, secondary: bool, weight: Weight) -> None:
    told = WeighedCause.of(
        messages.message(Account, {"cause": {"node": "a", "text": "", "secondary": secondary}, **given})
    )
    assert told is not None and (told.weight, told.blames) == (weight, ())
