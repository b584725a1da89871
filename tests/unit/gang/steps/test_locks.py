"""A lock stays fresh while its holder waits for a long step, and tells whether its process still runs."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import status, unasked
from tests.support.local_gang import Local, Notes
from tests.support.waiting import until

from orchestrator.gang.operations import GangOperation, OperationKind
from orchestrator.gang.steps import down as down_steps
from orchestrator.gang.steps import locks, operation
from orchestrator.gang.steps.locks import GangLock, release, still_ours, take_again
from orchestrator.gang.steps.status.reports import begun_on, has_ended, interrupted, this_process
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Reach
from orchestrator.model.per_node import PerNode
from orchestrator.node import processes
from orchestrator.protocol.errors import DeployError, LockHeld, Unreachable
from orchestrator.protocol.verbs import LockAnswer, LockHolder
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import NodeRefusal

pytestmark = pytest.mark.processes


def test_it_is_renewed_by_itself_and_given_back(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "RENEW_EVERY_S", 0.1)
    gang = local()
    files = [Path(gang.state_dir(rank), "gangs/gang0/lock") for rank in range(2)]
    with Fleet(gang.gang.nodes) as fleet:
        with GangLock(fleet, gang.gang, "restart"):
            old = time.time() - 55
            for file in files:
                os.utime(file, (old, old))
            until(lambda: all(time.time() - file.stat().st_mtime < 30 for file in files), 20.0, "renewed on every node")
            with pytest.raises(LockHeld), GangLock(fleet, gang.gang, "down"):
                pass
        assert not any(file.exists() for file in files)


class Nodes:
    """Two nodes' answers to a lock's questions."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {name: LockAnswer(mine=True) for name in ("a", "b")}
        self.asked = 0

    def ask(self, *_: Any, **__: Any) -> PerNode[Any]:
        self.asked += 1
        told = {name: answer for name, answer in self.answers.items() if not isinstance(answer, Exception)}
        failures = {name: answer for name, answer in self.answers.items() if isinstance(answer, DeployError)}
        for answer in self.answers.values():
            if isinstance(answer, ZeroDivisionError):
                raise answer
        return PerNode(values=told, failures=failures)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Nodes:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(locks, "RENEW_EVERY_S", 0.01)
    asked = Nodes()
    monkeypatch.setattr(GangLock, "_ask", asked.ask)
    return asked


GANG = GangSpec(
    name="g", nodes=tuple(NodeSpec(name=name, gang="g", node_rank=0, reach=Reach(host="none")) for name in "ab")
)
LOST = Unreachable("no route", where="b", fix="look")


@pytest.mark.parametrize("kind", ["no-space", "read-only", "no-access"])
def test_a_node_without_room_for_the_lock_is_told_to_stop_without_it(nodes: Nodes, kind: str) -> None:
    nodes.answers["b"] = NodeRefusal("the disk is full", where="b: /x", fix="free space", kind=kind)
    with Fleet([]) as fleet, GangLock(fleet, GANG, "down", partial=True) as lock:
        tokens = [locks.fence(fleet, "g", node) for node in ("a", "b", "")]
        assert tokens == [lock.token, lock.token if kind == "no-access" else "", lock.token]
    with pytest.raises(NodeRefusal, match="the disk is full"), Fleet([]) as fleet, GangLock(fleet, GANG, "up"):
        pass


OTHER = LockHolder(who="ann", host="h", pid=7, command="up", token="x")


@pytest.mark.parametrize(
    ("answer", "words"),
    [(LockAnswer(held=OTHER), r"ann@h \(pid 7\) holds it with `up`"), (LockAnswer(), "released by force")],
)
def test_a_lost_lock_is_noticed_and_told(nodes: Nodes, answer: LockAnswer, words: str) -> None:
    fleet = Fleet(GANG.nodes)
    with GangLock(fleet, GANG, "restart") as lock:
        still_ours(fleet, [GANG])
        nodes.answers["b"] = answer
        until(lambda: bool(lock._lost), 20.0, "the loss is noticed")
        nodes.answers["b"] = LockAnswer(mine=True)
        with pytest.raises(LockHeld, match=words) as lost:
            still_ours(fleet, [GANG])
        assert (lost.value.where, lost.value.exit_code) == ("b", 6)
        with pytest.raises(LockHeld):
            down_steps.stop(fleet, [GANG], Notes(), now=True)
        still_ours(Fleet(GANG.nodes), [GANG])
    still_ours(fleet, [GANG])


@pytest.mark.parametrize("trouble", [LOST, ZeroDivisionError("our own")])
def test_what_keeps_it_from_being_renewed_is_no_loss_and_no_end(nodes: Nodes, trouble: Exception) -> None:
    with GangLock(Fleet(GANG.nodes), GANG, "restart") as lock:
        nodes.answers["b"] = trouble
        before = nodes.asked
        until(lambda: nodes.asked > before + 3, 20.0, "it is tried again and again")
        nodes.answers["b"] = LockAnswer(mine=True)
        lock.still_ours()


def test_a_node_that_was_never_locked_is_not_lost(nodes: Nodes) -> None:
    nodes.answers["b"] = LOST
    with GangLock(Fleet(GANG.nodes), GANG, "down", partial=True) as lock:
        nodes.answers["b"] = LockAnswer()
        before = nodes.asked
        until(lambda: nodes.asked > before + 3, 20.0, "it was asked for")
        lock.still_ours()


def test_a_holder_that_was_stopped_asks_before_it_goes_on(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "RENEW_EVERY_S", 600.0)
    with GangLock(Fleet(GANG.nodes), GANG, "restart") as lock:
        nodes.answers["a"] = LockAnswer(held=OTHER)
        lock.still_ours()
        lock._renewed_at -= 1000.0
        with pytest.raises(LockHeld, match="ann@h"):
            lock.still_ours()


def test_a_down_that_lost_its_lock_meanwhile_does_not_say_that_all_is_stopped(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its controller was stopped for minutes, and another one's gang serves by now."""
    monkeypatch.setattr(locks, "RENEW_EVERY_S", 600.0)

    def stopped(*_: object, **__: object) -> tuple[()]:
        nodes.answers["a"] = LockAnswer(held=OTHER)
        for lock in locks._held:
            lock._renewed_at -= 10_000.0
        return ()

    monkeypatch.setattr(operation, "see", lambda *_, **__: ())
    monkeypatch.setattr(down_steps, "stop_gangs", stopped)
    with pytest.raises(LockHeld, match="ann@h"):
        down_steps.down(unasked(Inventory(path="hosts.yml", gangs=(GANG,))), down_steps.DownRequest())


def test_a_node_that_is_down_costs_a_holder_no_second_question(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each step it would wait for that node; whoever takes the lock over needs the others too."""
    monkeypatch.setattr(locks, "RENEW_EVERY_S", 600.0)
    with GangLock(Fleet(GANG.nodes), GANG, "restart") as lock:
        nodes.answers["b"] = LOST
        lock._renewed_at -= 1000.0
        lock.still_ours()
        asked = nodes.asked
        lock.still_ours()
        assert nodes.asked == asked


def test_what_was_begun_stays_when_the_lock_goes_and_is_forgotten_by_its_holder_alone(local: Local) -> None:
    gang = local(nodes=3)
    begun = GangOperation(
        gang="gang0", what=OperationKind.ROLLING, turning=True, was_run="r1", who="anna", host="desk", since=1.0
    )
    with Fleet(gang.gang.nodes) as fleet:
        with GangLock(fleet, gang.gang, "restart") as lock:
            lock.begin(begun)
            assert [one.gang for one in begun_on(fleet, [gang.gang])] == ["gang0"]
            assert interrupted(fleet, [gang.gang]) == ()  # another command is at work
        assert interrupted(fleet, [gang.gang]) == (begun,)
        with pytest.raises(LockHeld):
            lock.begin(begun)  # given back by now
        Path(gang.state_dir(0), "gangs/gang0/begun.json").unlink()  # killed before it had written to every node
        assert interrupted(fleet, [gang.gang]) == (begun,) == status([gang.gang]).interrupted
        lock.finish()
        assert interrupted(fleet, [gang.gang]) == (begun,)
        with GangLock(fleet, gang.gang, "up") as lock:
            lock.finish()
        assert interrupted(fleet, [gang.gang]) == () == status([gang.gang]).interrupted


def test_a_node_that_came_back_with_an_empty_disk_is_locked_again(local: Local) -> None:
    gang = local()
    files = [Path(gang.state_dir(rank), "gangs/gang0/lock") for rank in range(2)]
    with Fleet(gang.gang.nodes) as fleet, GangLock(fleet, gang.gang, "restart --maintenance") as lock:
        files[1].unlink()
        lock._renew(fleet)
        with pytest.raises(LockHeld):
            still_ours(fleet, [gang.gang])
        take_again(fleet, gang.gang)
        still_ours(fleet, [gang.gang])
        assert all(file.exists() for file in files)


def test_a_damaged_lock_file_is_told_in_words_and_given_back_by_force(local: Local) -> None:
    gang = local()
    file = Path(gang.state_dir(1), "gangs/gang0/lock")
    file.parent.mkdir(parents=True)
    file.write_bytes(b'{"token": "half')
    with Fleet(gang.gang.nodes) as fleet:
        with pytest.raises(LockHeld, match="can't be read") as held, GangLock(fleet, gang.gang, "down"):
            pass
        assert held.value.where == "node1" and "lock --release --force" in held.value.fix
        with pytest.raises(LockHeld, match="can't be read"):
            release(fleet, [gang.gang])
        (found,) = (lock for lock in release(fleet, [gang.gang], force=True) if lock.held.token)
        assert found.node == "node1" and not file.exists()
        with GangLock(fleet, gang.gang, "down"):
            pass


@pytest.fixture
def ended() -> dict[str, Any]:
    """A process of this machine that was killed."""
    process = subprocess.Popen(["sleep", "600"])
    holder = this_process() | {"pid": process.pid, "start": processes.start_of(process.pid)}
    assert not has_ended(LockHolder(token="t", **holder))
    process.kill()
    process.wait()
    return holder


def test_we_run_and_a_killed_process_of_this_machine_has_ended(ended: dict[str, Any]) -> None:
    assert not has_ended(LockHolder(token="t", **this_process()))
    assert has_ended(LockHolder(token="t", **ended))
    # another process with its id is not it
    assert has_ended(LockHolder(token="t", **this_process() | {"start": ended["start"] + 1}))


@pytest.mark.parametrize(
    "unlike",
    [{"boot": "another"}, {"pid_namespace": "pid:[1]"}, {"boot": ""}, {"boot": None}, {"pid": None}, {"start": None}],
)
def test_one_that_can_not_be_seen_from_here_has_not_ended(ended: dict[str, Any], unlike: dict[str, Any]) -> None:
    """A container or a cloned machine with the same host name, and the holder as an older release wrote it."""
    assert not has_ended(LockHolder(token="t", **{**ended, **unlike}))


def test_the_lock_of_a_killed_controller_on_this_machine_is_taken_over_at_once(
    local: Local, ended: dict[str, Any]
) -> None:
    gang = local()
    with Fleet(gang.gang.nodes) as fleet:
        lock = GangLock(fleet, gang.gang, "up")
        lock._holder = lambda: LockHolder(token="t", who="a", **ended)  # type: ignore[method-assign]
        lock.__enter__()
        with GangLock(fleet, gang.gang, "down") as taken:
            assert taken.token != "t"


def test_a_lock_that_nobody_can_keep_fresh_is_given_back(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if getattr(thread, "_target", None) == lock._keep:
            raise RuntimeError("can't start new thread")
        start(thread)

    gang = local()
    with Fleet(gang.gang.nodes) as fleet:
        lock = GangLock(fleet, gang.gang, "restart")
        monkeypatch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="new thread"), lock:
            pass
        assert not any(Path(gang.state_dir(rank), "gangs/gang0/lock").exists() for rank in range(2))
        assert lock not in locks._held
