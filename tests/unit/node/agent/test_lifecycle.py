"""The course of one node's part: tables of events and resulting actions, without processes and with a simulated
clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.support.gang import linked_run

from orchestrator.node.agent import lifecycle, verdicts
from orchestrator.node.agent.causes import Statement, Weight
from orchestrator.node.agent.lifecycle import (
    FOLLOW_LEADER_S,
    LEADERS_CHECKS_S,
    LINK_S,
    Effect,
    Enter,
    Facts,
    Lifecycle,
    LinkFacts,
    Send,
)
from orchestrator.node.agent.membership import RECONNECT_S, Event, LinkClosed, LinkOpened, MessageReceived
from orchestrator.node.agent.verdicts import PlainEffect, PlainEvent
from orchestrator.protocol.link import Account, AgentEnded, Ask, Digest, Drain, End, Ended, Go, Pulse, Stop
from orchestrator.protocol.message import Message
from orchestrator.protocol.report import AgentState, Cause
from orchestrator.protocol.run_files import GoalOrder
from orchestrator.protocol.verbs import Because

EPOCH_S = 1e9
COMPLETE = Facts(complete=True)
KILLED = Cause(node="b", tp_rank=2, signal=9, text="TP2 was killed", at=1.0)
RESET = LinkClosed("b", "Connection reset by peer", broken=True)


def part(node: str, state: str = "ready", **more: Any) -> Lifecycle:
    """a leads; its only member b has joined at second 100."""
    made = Lifecycle(linked_run(node, **{"lease_s": 20.0, **more}), EPOCH_S)
    made.step(100.0, PlainEvent.CHECKS_PASSED)
    made.step(100.0, LinkOpened("b" if node == "a" else "a"))
    made.state, made.engine_runs = AgentState(state), state in ("starting", "warming", "ready", "draining")
    return made


def says(node: str, message: Message) -> MessageReceived:
    return MessageReceived(node, message.as_json())


def sent(effects: Sequence[Effect]) -> list[Message]:
    return [effect.message for effect in effects if isinstance(effect, Send)]


def entered(effects: Sequence[Effect]) -> list[str]:
    return [effect.state.value for effect in effects if isinstance(effect, Enter)]


def test_a_leader_is_armed_at_once_and_a_member_once_it_has_joined() -> None:
    leader, member = (Lifecycle(linked_run(node), EPOCH_S) for node in "ab")
    assert leader.step(1.0, PlainEvent.TICK) == [], "its checks go on"
    assert entered(leader.step(2.0, PlainEvent.CHECKS_PASSED)) == ["armed"]
    assert entered(member.step(2.0, PlainEvent.CHECKS_PASSED)) == []
    assert entered(member.step(2.0, PlainEvent.TICK)) == []
    member.step(3.0, LinkOpened("a"))
    assert entered(member.step(3.0, PlainEvent.TICK)) == ["armed"]


@pytest.mark.parametrize(("reached", "patience_s"), [(False, LINK_S), (True, LEADERS_CHECKS_S)])
def test_a_leader_whose_port_answers_may_still_be_checking(reached: bool, patience_s: float) -> None:
    member = Lifecycle(linked_run("b"), EPOCH_S)
    member.step(100.0, PlainEvent.CHECKS_PASSED)
    facts = Facts(link=LinkFacts(reached=reached, trouble="connection refused" if reached else ""))
    assert member.step(100.0 + patience_s - 1, PlainEvent.TICK, facts) == []
    assert entered(member.step(100.0 + patience_s + 1, PlainEvent.TICK, facts)) == ["failed"]
    assert member.cause is not None and "does not respond" in member.cause.text and member.cause.secondary
    assert member.cause.text.endswith("(connection refused)" if reached else "(no answer)")


def test_a_leader_of_a_release_that_can_not_be_followed_is_not_waited_for() -> None:
    member = Lifecycle(linked_run("b"), EPOCH_S)
    member.step(100.0, PlainEvent.CHECKS_PASSED)
    misfit = "is l40s-deploy 7.1.0, newer than this one (0.1.0)"
    member.step(100.1, PlainEvent.TICK, Facts(link=LinkFacts(misfit=misfit)))
    assert member.cause is not None and member.cause.secondary
    assert member.cause.text == f"the leader's agent {misfit}"
    assert "`l40s-deploy down " in member.cause.fix


def test_armed_and_forgotten_it_ends() -> None:
    leader = part("a", "armed", armed_for_s=120.0, lease_s=900.0)
    assert leader.step(219.0, PlainEvent.TICK) == []
    assert entered(leader.step(221.0, PlainEvent.TICK)) == ["stopping"]


def test_go_starts_the_leaders_engine_and_everybody_elses() -> None:
    leader, member = part("a", "armed"), part("b", "armed")
    go = lifecycle.GoalChanged(GoalOrder(goal="run"))
    assert leader.step(101.0, go) == [PlainEffect.START_ENGINE, Enter(AgentState.STARTING), Send(Go())]
    assert leader.step(101.1, go) == [], "the order lies there still"
    assert member.step(101.0, says("a", Go())) == [PlainEffect.START_ENGINE, Enter(AgentState.STARTING)]


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
    leader.step(101.0, lifecycle.PartFailed(KILLED))
    assert sent(leader.step(102.0, LinkOpened("b"))) == [End(verdict=KILLED)]


def test_a_death_is_told_the_leader_asks_and_rules_once() -> None:
    leader, member = part("a"), part("b")
    statement = Statement(KILLED, Weight.SEEN)
    told = member.step(101.0, verdicts.OwnFailure(statement))
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
    statement = Statement(KILLED, Weight.SEEN)
    assert member.step(102.0, verdicts.OwnFailure(statement)) == []
    told = member.step(102.0, LinkOpened("a"))
    assert sent(told) == [statement.account()] and entered(told) == ["failed"]


def test_a_death_after_the_leaders_agent_is_not_the_cause() -> None:
    """Its ranks died with it, and ours of that; its guardian may say so later than ours are seen dead."""
    member = part("b")
    member.step(101.0, LinkClosed("a", "Connection reset by peer", broken=True))
    assert member.step(101.4, verdicts.OwnFailure(Statement(KILLED, Weight.SEEN))) == []
    effects = member.step(102.5, says("a", AgentEnded()))
    assert entered(effects) == ["failed"] and member.cause is not None and member.cause.node == "a"


@pytest.mark.parametrize("cause", [KILLED, None])
def test_a_member_that_has_ended_ends_the_gang_whatever_was_lost_on_the_way(cause: Cause | None) -> None:
    leader = part("a")
    leader.step(101.0, says("b", Ended(state=AgentState.FAILED, cause=cause)))
    leader.step(101.0, PlainEvent.LOOK_DONE)
    leader.step(101.0 + verdicts.SETTLE_S, PlainEvent.TICK)
    assert leader.state is AgentState.FAILED and leader.verdict is not None
    assert leader.verdict == cause or "without a reported cause" in leader.verdict.text


def test_a_member_that_was_stopped_stops_the_gang() -> None:
    leader = part("a")
    effects = leader.step(101.0, says("b", Ended(state=AgentState.STOPPED)))
    assert sent(effects) == [End(now=True)] and entered(effects) == ["stopping"]


def test_stop_drains_the_leaders_engine_first_and_the_others_follow() -> None:
    leader, member = part("a"), part("b")
    stop = lifecycle.GoalChanged(GoalOrder(goal="stop"))
    assert member.step(101.0, stop) == [Send(Stop()), Enter(AgentState.DRAINING)]
    assert leader.step(101.0, says("b", Stop())) == [
        Enter(AgentState.DRAINING),
        Send(Drain()),
        PlainEffect.ASK_ENGINE_TO_END,
    ]
    assert leader.step(102.0, PlainEvent.TICK) == []
    leader.step(103.0, PlainEvent.ENGINE_GONE)
    assert leader.step(103.0, PlainEvent.TICK) == [Send(End()), Enter(AgentState.STOPPING)]
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
        effects = part(node).step(101.0, lifecycle.GoalChanged(GoalOrder(goal="stop-now")))
        assert effects == [Send(message), Enter(AgentState.STOPPING)]
    leader = part("a")
    because = Because(node="b", text="it was lost", fix="look there")
    leader.step(101.0, lifecycle.GoalChanged(GoalOrder(goal="stop-now", because=because)))
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
            lifecycle.GoalChanged(GoalOrder(goal="run")), lifecycle.GoalChanged(GoalOrder(goal="stop")),
            lifecycle.PartFailed(KILLED), PlainEvent.TICK,
            says(other, Go()), says(other, Stop()), says(other, Drain()), says(other, AgentEnded()),
        ):  # fmt: skip
            effects = one.step(500.0, event)
            assert not any(isinstance(effect, (PlainEffect, Enter, Send)) for effect in effects), event
        assert one.state == state


def test_what_comes_late_may_still_be_nearer_to_the_cause() -> None:
    leader = part("a")
    leader.step(101.0, lifecycle.PartFailed(replace(KILLED, node="a", secondary=True)))
    leader.step(101.1, says("b", Account(type="failed", cause=KILLED)))
    assert leader.verdict == KILLED
