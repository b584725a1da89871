"""Two commands behind one router: one takes its gang out, and the other one waits for it; over a real lock."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import unasked
from tests.support.waiting import until

from orchestrator.gang.claims import Way
from orchestrator.gang.steps import down, locks, operation
from orchestrator.gang.steps.restart_sequence import RestartRequest
from orchestrator.gang.steps.router import claim
from orchestrator.gang.steps.router.claim import RouterTurn
from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Reach, RouterSpec
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.errors import LockHeld, Unreachable
from orchestrator.protocol.verbs import LockAnswer, LockHolder
from orchestrator.remote.fleet import Fleet

pytestmark = pytest.mark.processes


@dataclass
class World:
    """Two gangs behind a router on this machine. states: of the gangs, by name."""

    folder: Path
    states: dict[str, GangState] = field(default_factory=lambda: {"a": GangState.READY, "b": GangState.READY})
    said: list[str] = field(default_factory=list)
    host: str = "localhost"

    def see(self, _: object, gangs: Sequence[GangSpec], **__: object) -> tuple[GangView, ...]:
        def view(name: str) -> GangView:
            state = self.states[name]
            healthy = state is GangState.READY
            return GangView(name=name, state=state, service_healthy=healthy, service_url=f"http://{name}")

        return tuple(view(gang.name) for gang in gangs)

    def step(self, gang: str, words: str) -> None:
        self.said.append(f"{gang}: {words}")

    def turn(self, gang: str, patience_s: float = 0.0, way: Way = Way.WAITS) -> RouterTurn:
        reach = Reach(connection="local", host="localhost", python=sys.executable)
        front = NodeSpec(name="front", gang="router", node_rank=0, reach=reach, state_dir=str(self.folder))
        gangs = tuple(
            GangSpec(name=name, nodes=(NodeSpec(name=f"on-{name}", gang=name, node_rank=0, reach=reach),))
            for name in self.states
        )
        inventory = Inventory(path="hosts.yml", gangs=gangs, router=RouterSpec(node=front))
        return RouterTurn(unasked(inventory), [gang], f"l40s-deploy restart {gang}", self, patience_s, way)  # type: ignore[arg-type]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    made = World(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(operation, "see", made.see)
    monkeypatch.setattr(claim, "POLL_S", 0.05)
    return made


def test_the_second_one_is_told_who_has_it_and_ends_with_6(world: World) -> None:
    with world.turn("a") as first, world.turn("b") as second:
        assert first.wait() is False
        with pytest.raises(LockHeld) as late:
            second.wait()
        assert (late.value.exit_code, late.value.where) == (6, "front")
        named = f"{locks.user()}@{os.uname().nodename} (pid {os.getpid()}) changes a behind the router with"
        assert late.value.what.startswith(f"{named} `l40s-deploy restart a`, for ")
        assert "waited 0 s, and nothing was stopped" in late.value.what and "--all-at-once" in late.value.fix
        first.still_ours()


def test_it_waits_says_for_whom_once_and_goes_on_when_that_ends(world: World) -> None:
    waited: list[bool] = []
    with world.turn("b", 60.0) as second:
        with world.turn("a") as first:
            first.wait()
            waiting = threading.Thread(target=lambda: waited.append(second.wait()))
            waiting.start()
            until(lambda: bool(world.said), 30.0)
            assert not waited
        waiting.join(60.0)
        assert waited == [True]
        second.still_ours()
        with world.turn("a") as third, pytest.raises(LockHeld):
            third.wait()
    assert len(world.said) == 1 and world.said[0].startswith("b: waiting: ") and "restart a`" in world.said[0]


@pytest.mark.parametrize("state", [GangState.FAILED, GangState.ABSENT])
def test_a_recovery_is_never_held_up(world: World, state: GangState) -> None:
    with world.turn("a") as first, world.turn("b") as second:
        first.wait()
        world.states["b"] = state
        assert second.wait() is False
        first.still_ours()


def test_a_wait_ends_when_its_gang_has_failed(world: World) -> None:
    waited: list[bool] = []
    with world.turn("a") as first, world.turn("b", 60.0) as second:
        first.wait()
        waiting = threading.Thread(target=lambda: waited.append(second.wait()))
        waiting.start()
        until(lambda: bool(world.said), 30.0)
        world.states["b"] = GangState.FAILED
        waiting.join(60.0)
        assert waited == [True]


def test_a_gang_that_a_down_ends_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds no claim, and its gang may drain for a minute."""
    held = LockAnswer(held=LockHolder(token="theirs", command="down"))
    monkeypatch.setattr(down, "shown_locks", lambda *_: PerNode(values={"on-a": held}, failures={}))
    with world.turn("b") as second, pytest.raises(LockHeld, match="`down` ends a behind the same router"):
        second.wait()


def test_an_announced_recovery_is_waited_for(world: World) -> None:
    world.states["a"] = GangState.FAILED
    with world.turn("a") as guard, world.turn("b") as second:
        guard.announce()
        with pytest.raises(LockHeld, match="restart a`"):
            second.wait()
    with world.turn("b") as again:
        again.wait()


def test_a_gang_that_somebody_has_started_is_waited_for_without_a_claim(world: World) -> None:
    world.states["a"] = GangState.WARMING
    with world.turn("b") as second, pytest.raises(LockHeld, match="a is warming behind the same router"):
        second.wait()


def test_all_at_once_waits_for_nobody(world: World) -> None:
    with world.turn("a") as first, world.turn("b", way=Way.AT_ONCE) as second:
        first.wait()
        assert second.wait() is False
        second.still_ours()


@pytest.mark.parametrize(
    ("asked", "way"),
    [
        ({}, Way.WAITS),
        ({"all_at_once": True}, Way.AT_ONCE),
        ({"all_at_once": True, "without_router": True}, Way.AT_ONCE),
        ({"without_router": True}, Way.REDIRECTED),
    ],
)
def test_how_a_restart_goes_about_others_is_what_was_typed(asked: dict[str, bool], way: Way) -> None:
    assert RestartRequest(**asked).way is way  # type: ignore[arg-type]


def test_a_claim_without_heartbeat_expires_by_the_host_s_clock_and_its_holder_learns_that(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paused controller; a wall clock that was set makes nothing old."""
    monkeypatch.setattr(claim, "RENEW_EVERY_S", 3600.0)
    with world.turn("a") as first:
        first.wait()
        (file,) = world.folder.rglob("turn.all/lock")
        assert json.loads(file.read_text())["expires_s"] == 30.0
        os.utime(file, (1.0, 1.0))
        with world.turn("b") as second, pytest.raises(LockHeld):
            second.wait()
    monkeypatch.setattr(claim, "EXPIRES_S", 0.5)
    with world.turn("a") as first, world.turn("b", 60.0) as second:
        first.wait()
        second.wait()
        monkeypatch.setattr(claim, "RENEW_EVERY_S", 0.0)
        with pytest.raises(LockHeld, match=r"was lost .*restart b`") as lost:
            first.still_ours()
        assert lost.value.exit_code == 6


def test_a_killed_holder_on_this_machine_holds_nobody_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.turn("a") as first, world.turn("b") as second:
        first.wait()
        monkeypatch.setattr(locks, "has_ended", lambda _: True)
        assert second.wait() is False


def test_an_unreachable_host_stops_nothing_but_a_recovery_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_route(*_: Any, **__: Any) -> Any:
        raise Unreachable("no route", where="front", fix="look")

    monkeypatch.setattr(locks, "ask_lock", no_route)
    with world.turn("a", 60.0) as turn, pytest.raises(Unreachable, match="nothing was stopped") as away:
        turn.wait()
    assert away.value.exit_code == 4
    for way, state in (
        (Way.WAITS, GangState.FAILED),
        (Way.AT_ONCE, GangState.READY),
        (Way.REDIRECTED, GangState.READY),
    ):
        world.states["a"] = state
        with world.turn("a", way=way) as turn:
            assert turn.wait() is False
            turn.announce()


def test_what_it_holds_is_no_gang_of_the_router_s_host(world: World) -> None:
    with world.turn("a") as first, Fleet([]):
        first.wait()
        assert [path.name for path in (world.folder / "gangs").iterdir()] == ["turn.all"]
