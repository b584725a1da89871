"""Many sessions at once, over real sshds."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.support.waiting import until

from orchestrator.model.inventory import NodeSpec, Reach
from orchestrator.protocol.errors import NodeError, Unreachable
from orchestrator.remote.fleet import Fleet, StragglerWait, take
from orchestrator.remote.local import LocalSession
from orchestrator.remote.session import Connection, Session

from .conftest import Sshd


def local(name: str) -> NodeSpec:
    return NodeSpec(name=name, gang="g", node_rank=0, reach=Reach(host=name, connection="local"))


def test_all_nodes_work_at_the_same_time() -> None:
    meeting = threading.Barrier(4)
    with Fleet(local(f"n{number}") for number in range(4)) as fleet:
        done = fleet.on_every(lambda session: (meeting.wait(20), session.spec.name)[1])
    assert dict(done.values) == {f"n{number}": f"n{number}" for number in range(4)}


def test_a_failed_node_is_a_value_beside_the_others(sshd: Sshd) -> None:
    with socket.socket() as taken:
        taken.bind((sshd.address, 0))
        nodes = [sshd.spec("down", port=taken.getsockname()[1]), sshd.spec("up"), local("odd")]

        def work(session: Session) -> int:
            if session.spec.name == "odd":
                raise NodeError("odd", where="odd", fix="none")
            return session.run("exit 7", deadline_s=20).status

        with Fleet(nodes, connect_deadline_s=20) as fleet:
            done = fleet.on_every(work)
    assert done.values == {"up": 7}
    assert list(done.failures) == ["down", "odd"]
    assert isinstance(done.failures["down"], Unreachable)
    with pytest.raises(Unreachable):
        done.all()


def test_a_glance_does_not_wait_for_a_node_that_the_others_have_left_behind() -> None:
    back = threading.Event()
    done: list[str] = []

    def work(session: Session) -> int:
        if session.spec.name == "cut":
            assert back.wait(60)
            done.append("cut")
        return 1

    with Fleet([local("a"), local("cut"), local("b")]) as fleet:
        seen = fleet.on_every(work, patience=StragglerWait(least_s=0.05, times=1.0))
        assert not done, "it was waited for"
        back.set()
    assert "a" in seen.values or "b" in seen.values
    assert isinstance(seen.failures["cut"], Unreachable)


def test_looks_that_wait_for_one_try_to_connect_share_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Glances at a node that does not answer are many; one that tried anew for each of them would be late by all."""
    tries, go_on = [], threading.Event()

    def connect(spec: NodeSpec, deadline_s: float) -> Any:
        tries.append(spec.name)
        go_on.wait(20)
        raise Unreachable(f"try {len(tries)} was silent", where=spec.name, fix="look")

    monkeypatch.setattr("orchestrator.remote.fleet.connect", connect)
    told: list[str] = []
    waiting: list[int] = []

    class Door:
        """The lock before a node's connection, which tells who waits there."""

        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __enter__(self) -> None:
            waiting.append(1)
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()

    def look() -> None:
        told.append(fleet.on_every(lambda session: None).failures["a"].what)

    with Fleet([NodeSpec(name="a", gang="g", node_rank=0, reach=Reach(host="none"))]) as fleet:
        fleet._opening["a"] = cast("threading.Lock", Door())
        looks = [threading.Thread(target=look) for _ in range(5)]
        for one in looks:
            one.start()
        until(lambda: len(waiting) == len(looks), 20.0, "all of them wait")
        go_on.set()
        for one in looks:
            one.join()
        look()
    assert sorted(told) == [*["try 1 was silent"] * 5, "try 2 was silent"]


def test_a_glance_that_nobody_answers_waits_for_the_nodes_own_deadline() -> None:
    def work(session: Session) -> int:
        raise Unreachable("gone", where=session.spec.name, fix="wait")

    with Fleet([local("a"), local("b")]) as fleet:
        seen = fleet.on_every(work, patience=StragglerWait(least_s=0.0, times=0.0))
    assert {failure.what for failure in seen.failures.values()} == {"gone"}


def test_a_defect_of_ours_is_raised() -> None:
    def work(session: Session) -> int:
        if session.spec.name == "b":
            raise ZeroDivisionError
        return 1

    with Fleet([local("a"), local("b")]) as fleet, pytest.raises(ZeroDivisionError):
        fleet.on_every(work)


def test_a_connection_is_kept_and_reopened_when_lost(start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd()

    def which(session: Session) -> bytes:
        return session.run("echo $SSH_CONNECTION", deadline_s=20).out

    with Fleet([server.spec(), local("other")], connect_deadline_s=20) as fleet:
        first = fleet.on_every(which).all()["node0"]
        assert fleet.on_every(which).all()["node0"] == first
        server.kill_sessions()
        until(lambda: "node0" in fleet.on_every(which).values)
        assert fleet.on_every(which).all()["node0"] != first


def test_closing_ends_work_and_connections(start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd()
    started = threading.Event()

    def long(session: Session) -> int:
        started.set()
        return session.run("sleep 60", deadline_s=60).status

    fleet = Fleet([server.spec()], connect_deadline_s=20)

    def close_when_started() -> None:
        started.wait(20)
        fleet.close()

    threading.Thread(target=close_when_started).start()
    done = fleet.on_every(long)
    assert isinstance(done.failures["node0"], Unreachable)
    until(lambda: not server.sessions())
    assert isinstance(fleet.on_every(long).failures["node0"], Unreachable)


def left_by(spec: NodeSpec) -> Connection:
    """The connection that a fleet of this node leaves to the next one."""
    with Fleet([spec], hands_over=True) as fleet:
        (session,) = fleet.on_every(lambda session: session).values.values()
    return cast(Connection, session)


def test_a_fleet_leaves_its_idle_connections_to_the_next_one(sshd: Sshd) -> None:
    first = sshd.spec("a")
    before = left_by(first)
    with Fleet([replace(first, gang="another")]) as fleet:
        (after,) = fleet.on_every(lambda session: session).values.values()
        assert after is before and after.spec.gang == "another"
        assert after.run("true", deadline_s=20).status == 0
    with Fleet([first]) as fleet:
        (anew,) = fleet.on_every(lambda session: session).values.values()
        assert anew is not before, "the second fleet hands nothing over"


@pytest.mark.parametrize("why", ["another way", "too old", "lost"])
def test_a_connection_that_may_not_be_the_right_one_is_opened_anew(
    sshd: Sshd, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    spec = sshd.spec("a")
    before = left_by(spec)
    if why == "another way":
        spec = replace(spec, reach=replace(spec.reach, python="python3.99"))
    elif why == "too old":
        monkeypatch.setattr("orchestrator.remote.fleet.KEPT_S", -1.0)
    else:
        before.close()
    with Fleet([spec]) as fleet:
        (after,) = fleet.on_every(lambda session: session).values.values()
        assert after is not before
        assert after.run("true", deadline_s=20).status == 0
    assert not before.alive


def test_a_connection_at_work_is_not_handed_over() -> None:
    back = threading.Event()

    def work(session: Session) -> Session:
        if session.spec.name == "cut":
            assert back.wait(60)
        return session

    with Fleet([local("a"), local("cut")], hands_over=True) as fleet:
        fleet.on_every(work, patience=StragglerWait(least_s=0.05, times=1.0))
    assert take(local("a")) is not None
    assert take(local("cut")) is None
    back.set()


def test_a_connection_that_nobody_takes_is_closed(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.remote.fleet.KEPT_S", 0.05)
    left = left_by(sshd.spec("a"))
    until(lambda: not left.alive)


@pytest.mark.parametrize("login_s", [60.0, 0.0])
def test_a_glance_waits_for_a_login_and_says_where_one_is_too_slow(
    login_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    class SlowLogin(LocalSession):
        @property
        def logging_in(self) -> bool:
            return self.spec.name == "slow" and not ended.is_set()

    def work(session: Session) -> int:
        if session.spec.name == "slow":
            threading.Timer(1.0, ended.set).start()
            ended.wait(60)
        return 1

    monkeypatch.setattr("orchestrator.remote.fleet.connect", lambda spec, _: SlowLogin(spec))
    with Fleet([local("a"), local("slow")]) as fleet:
        seen = fleet.on_every(work, patience=StragglerWait(least_s=0.05, times=1.0, login_s=login_s))
    ended.set()
    if login_s:
        assert seen.values == {"a": 1, "slow": 1}
    else:
        assert "its login takes longer" in seen.failures["slow"].what


def test_a_command_that_only_looks_asks_a_lost_node_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[str] = []

    def connect(spec: NodeSpec, deadline_s: float) -> Any:
        tries.append(spec.name)
        raise Unreachable("was silent", where=spec.name, fix="look")

    monkeypatch.setattr("orchestrator.remote.fleet.connect", connect)
    for asks_lost in (True, False):
        tries.clear()
        with Fleet([local("a")], asks_lost=asks_lost) as fleet:
            failures = [fleet.on_every(lambda session: 1).failures["a"].what for _ in range(3)]
        assert failures == ["was silent"] * 3
        assert len(tries) == (3 if asks_lost else 1)
