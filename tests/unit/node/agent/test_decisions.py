"""What an agent concludes from what it hears, without processes: whose lease counts, and from when."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.linked_run import linked_run

from orchestrator.node.agent import preflight
from orchestrator.node.agent.agent import LEADERS_CHECKS_S, LINK_S, Agent
from orchestrator.node.agent.record import Record
from orchestrator.node.agent.run import Run
from orchestrator.node.engine.watch import LogWatch
from orchestrator.node.failure import Failure
from orchestrator.node.network.link import Hub, Joined, Left, Spoke
from orchestrator.protocol.report import AgentState, Cause

KEY = b"k" * 32
LOST, CLOSED = Left("b", "Connection timed out", broken=False), Left("b", "closed", broken=True)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "key").write_text(KEY.hex())
    return linked_run("a", str(tmp_path), lease_s=20.0)


class Deciding(Agent):
    """It only notes for what it would end."""

    def fail(self, cause: Cause, *, tell: bool = True) -> None:
        self.cause = cause
        self.state = AgentState.FAILED

    def why(self) -> str:
        return self.cause.text if self.cause else ""


def deciding(run: Run) -> Deciding:
    nothing: Any = None
    return Deciding(run, nothing, nothing, Record(run), LogWatch(), nothing, nothing)


def test_a_node_that_the_network_lost_keeps_its_lease_and_one_that_ended_does_not(run: Run) -> None:
    agent = deciding(run)
    agent.state, agent.hub = AgentState.READY, Hub(run, KEY, heard={"b": 100.0})
    agent._left(LOST)
    agent._judge_silence(119.0)
    assert agent.why() == "" and agent.record.value.links == {"b": "silent"}
    agent._judge_silence(121.0)
    assert "lease of 20 s ran out" in agent.why()
    ended = deciding(run)
    ended.state, ended.hub = AgentState.DRAINING, Hub(run, KEY, heard={"b": 100.0})
    ended._guardian_reported("b")
    ended._judge_silence(200.0)
    assert ended.why() == "" and ended.record.value.links == {"b": "ended"}


def test_a_broken_connection_has_a_moment_to_come_back(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = deciding(run)
    now = time.monotonic()
    agent.state, agent.hub = AgentState.READY, Hub(run, KEY, heard={"b": now + 10.0})
    events: list[Any] = [CLOSED]
    monkeypatch.setattr(agent.hub, "step", lambda _: [events.pop()] if events else [])
    agent._follow_link(now)
    agent._follow_link(now + 1.5)
    events.append(Joined("b"))
    agent._follow_link(now + 1.6)
    agent._follow_link(now + 10.0)
    assert agent.why() == ""
    events.append(CLOSED)
    agent._follow_link(now + 10.0)
    agent._follow_link(now + 13.0)
    assert "no new one came for 2 s" in agent.why()


def test_a_member_judges_a_broken_connection_by_what_the_leaders_port_says(run: Run) -> None:
    for refused, why in ((True, "every new one was refused"), (False, "")):
        agent = deciding(replace(run, node="b", node_rank=1))
        spoke = Spoke(agent.run, KEY, "a", heard_at=time.monotonic(), _refused=(1.0, 2.5) if refused else (1.0, 1.5))
        agent.state, agent.spoke = AgentState.READY, spoke
        agent._judge_broken("a", "Connection reset by peer")
        assert why in agent.why() and bool(why) == bool(agent.why())


def test_one_that_connects_again_is_told_what_it_missed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for state, missed in (("armed", []), ("starting", ["go"]), ("ready", ["go"]), ("draining", ["drain"])):
        agent = deciding(run)
        sent: list[tuple[str, str]] = []
        agent.state, agent.hub = AgentState(state), Hub(run, KEY)
        monkeypatch.setattr(agent.hub, "send", lambda message, only, to=sent: to.append((message.type, only)))
        agent._joined("b")
        assert sent == [(word, "b") for word in missed]


def test_a_node_that_comes_back_has_a_lease_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = deciding(run)
    agent.state, agent.hub = AgentState.READY, Hub(run, KEY, heard={"b": 100.0})
    agent.ended = {"b"}
    monkeypatch.setattr(agent.hub, "step", lambda _: [Joined("b")])
    agent._follow_link(101.0)
    assert agent.ended == set()


def test_patience_with_the_leader_begins_after_the_checks_and_the_leader_listens_before_its_own(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = deciding(run)
    checked: list[float] = []

    def check(*_: object) -> list[Failure]:
        with socket.create_connection((run.leader.address, run.leader.port), timeout=5):
            checked.append(time.monotonic())
        return []

    monkeypatch.setattr(preflight, "check", check)
    agent._began = 0.0
    assert agent._arm()
    assert agent._began >= checked[0]
    assert agent.hub is not None
    agent.hub.close()


@pytest.mark.parametrize(("reached", "patience_s"), [(False, LINK_S), (True, LEADERS_CHECKS_S)])
def test_a_leader_whose_port_answers_may_still_be_checking(run: Run, reached: bool, patience_s: float) -> None:
    agent = deciding(replace(run, node="b", node_rank=1))
    agent.spoke = Spoke(agent.run, KEY, "a")
    if reached:
        agent.spoke._wire = object()  # type: ignore[assignment]
    agent._began = 100.0
    agent._armed_when_joined(100.0 + patience_s - 1)
    assert agent.why() == ""
    agent._armed_when_joined(100.0 + patience_s + 1)
    assert "does not answer" in agent.why()


def test_a_leader_of_a_release_that_can_not_be_followed_is_not_waited_for(run: Run) -> None:
    agent = deciding(replace(run, node="b", node_rank=1))
    agent.spoke = Spoke(agent.run, KEY, "a", misfit="is l40s-deploy 7.1.0, newer than this one (0.1.0)")
    agent._began = 100.0
    agent._armed_when_joined(100.1)
    assert agent.cause is not None and agent.cause.secondary
    assert agent.why() == "the leader's agent is l40s-deploy 7.1.0, newer than this one (0.1.0)"
    assert "`l40s-deploy down`" in agent.cause.fix


def test_a_line_that_the_agent_can_not_read_is_a_remark_and_the_next_ones_are_read(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = deciding(run)
    read: list[str] = []

    def feed(line: str, _: float) -> bool:
        read.append(line)
        return line == "odd" and bool(int("9" * 5000))

    monkeypatch.setattr(agent.watch, "feed", feed)
    agent.state = AgentState.READY
    agent._watch(b"odd\nodd\nplain\n", 1.0)
    assert read == ["odd", "odd", "plain"] and agent.state is AgentState.READY
    (remark,) = agent.remarks
    assert "could not be read" in remark and "ValueError" in remark
