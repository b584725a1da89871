"""What is said while the requests of a gang that was taken out run, and when they are not waited for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.support.reference_cluster import gang

from orchestrator.gang.steps.router import draining
from orchestrator.gang.steps.router.draining import wait_until_drained
from orchestrator.gang.view import GangView
from orchestrator.model.deadlines import DRAIN_S
from orchestrator.model.gang_state import GangState
from orchestrator.protocol.errors import GangFailed
from orchestrator.protocol.hang import Hang
from orchestrator.protocol.report import Cause

SERVES = GangView(name="gang0", state=GangState.READY)
HANGS = GangView(name="gang0", state=GangState.DEGRADED, trouble="hung")
COMPILES = Cause(node="a", text="it compiles", hang=Hang(name="HANG-COMPILE", moves=True))
FORTY_MINUTES = 2400


@dataclass
class World:
    """An engine that has so many requests at each look, one second apart, and then the last of them for ever; None
    where it does not tell."""

    left: list[int | None] = field(default_factory=list)
    view: GangView = SERVES
    now: float = 0.0
    looks: int = 0
    said: list[str] = field(default_factory=list)

    def step(self, gang: str, words: str) -> None:
        self.said.append(f"{gang}: {words}")

    def look(self, *_: object) -> tuple[GangView]:
        self.looks += 1
        return (self.view,)

    def ask(self, *_: object) -> int | None:
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]

    def sleep(self, _: float) -> None:
        self.now += 1.0
        assert self.now < FORTY_MINUTES

    def wait(self) -> None:
        anything: Any = self
        wait_until_drained(anything, gang(1), "http://a", anything)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World()
    monkeypatch.setattr(draining, "ask_from", made.ask)
    monkeypatch.setattr(draining, "requests_left", lambda answer: answer)
    monkeypatch.setattr(draining, "see", made.look)
    monkeypatch.setattr("orchestrator.gang.steps.router.draining.time.monotonic", lambda: made.now)
    monkeypatch.setattr("orchestrator.gang.steps.router.draining.time.sleep", made.sleep)
    yield made


def test_two_looks_without_a_request_end_it_and_nothing_is_said(world: World) -> None:
    world.left = [0, 1, 0, 0]
    world.wait()
    assert (world.now, world.said) == (4.0, ["gang0: 1 request still runs"])


def test_requests_that_run_for_long_are_counted_aloud(world: World) -> None:
    world.left = [*[3] * 65, 0]
    world.wait()
    assert world.said == ["gang0: 3 requests still run"] * 3
    assert 5 <= world.looks <= 7


def test_an_engine_that_does_not_tell_is_left_to_its_own_drain(world: World) -> None:
    world.left = [None]
    world.wait()
    assert not world.said


def test_a_gang_that_hangs_is_not_waited_for(world: World) -> None:
    world.left, world.view = [2], HANGS
    world.wait()
    assert world.now < 12
    assert world.said[-1] == "gang0: it hangs, so that 2 requests can't end: not waited for"


@pytest.mark.parametrize("still", [{"gathering": True}, {"cause": COMPILES}])
def test_a_hang_that_is_looked_at_or_goes_on_by_itself_is_waited_for(world: World, still: dict[str, Any]) -> None:
    world.left = [2]
    world.view = GangView(name="gang0", state=GangState.DEGRADED, trouble="hung", **still)
    with pytest.raises(GangFailed, match="nothing was stopped") as failed:
        world.wait()
    assert world.now > DRAIN_S and "--now" in failed.value.fix
