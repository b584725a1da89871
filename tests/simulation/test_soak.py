"""A guard through 500 deaths and cuts, by the simulated clock: the gang comes back each time, and nothing grows.

On a slower machine there are fewer; DEATHS sets the number.
"""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from tests.simulation.controllers import STAGE, Controller, Event, SimulatedFleet, Watcher, controlled, restart
from tests.simulation.gang import Fault, Gang, simulated
from tests.simulation.world import World
from tests.support.hostile import resident_bytes
from tests.support.waiting import smaller

from orchestrator.gang.guarding import GuardDecision, Policy
from orchestrator.gang.steps.guard import post as posts
from orchestrator.gang.steps.guard.request import GuardRequest
from orchestrator.gang.steps.locks import GangLock

TURNS = 500
WARM_SHARE = 5
"""After one in so many deaths everything has been loaded once."""
BACK_S = 60.0
"""Simulated time until the gang serves again: a lease, the guard's look, a start."""
DEGRADE_S = 20.0
LATE_S = 15.0
"""By which the guard may be later: a look, and a step that was under way."""
MOST_GROWN = 12 << 20
KINDS = (
    Fault("kill-rank", (1,), 0.0), Fault("kill-rank", (0,), 0.0), Fault("kill-agent", (1,), 0.0),
    Fault("kill-guardian", (0,), 0.0), Fault("kill-both", (1,), 0.0), Fault("reset", (0, 1), 0.0, 3.0),
    Fault("partition", (1,), 0.0, 9.0), Fault("freeze", (1,), 0.0, 9.0),
)  # fmt: skip


class Told(Watcher):
    """Counts the guard's decisions. without: what it wanted to go on without."""

    def __init__(self) -> None:
        self.decisions = 0
        self.without: tuple[str, ...] = ()

    def decided(self, gang: str, decision: object) -> None:
        self.decisions += 1


@dataclass(frozen=True)
class Held:
    """What this process holds."""

    memory: int
    descriptors: int
    threads: int
    files: int

    @classmethod
    def now(cls, gang: Gang) -> Held:
        gc.collect()
        folder = gang.nodes[0].folder.parent
        return cls(
            resident_bytes(os.getpid()),
            len(list(Path("/proc/self/fd").iterdir())),
            threading.active_count(),
            sum(len(files) for _, _, files in os.walk(folder)),
        )


@contextmanager
def guarded(gang: Gang, controller: Controller, degrade_after_s: float | None = None) -> Iterator[Told]:
    """A guard's loop for the gang, with its policy in seconds."""
    world, told = gang.world, Told()
    fleet: Any = SimulatedFleet(controller.spec.nodes)
    moment = mock.Mock(spec=time, monotonic=lambda: world.now)

    def again(post: posts.GangPost, *_: object) -> None:
        (post.view,) = restart(controller, fleet, post)

    def go_on_without(post: posts.GangPost, decision: GuardDecision) -> None:
        told.without = decision.without
        post.ended.set()

    plan = SimpleNamespace(hung_after=lambda _: None)
    policy = Policy(limit=1000, first_pause_s=0.1, most_pause_s=1.0, stable_s=5.0, degrade_after_s=degrade_after_s)
    request = GuardRequest(policy=policy)
    ended: Any = Event()
    inventory: Any = SimpleNamespace(path="", router=None, gangs=(), notify=())
    operation = SimpleNamespace(inventory=inventory, router=None)
    post = posts.GangPost(inventory, fleet, controller.spec, request, told, ended=ended)
    lock: Any = GangLock
    with ExitStack() as patched:
        for name, value in {
            "time": moment, "connected": lambda _: nullcontext(operation), "staged_plan": lambda *_: plan,
            "against_starts": lambda *_: None,
            "GangLock": lambda *words, **more: lock(*words, **more, _given_back=Event()),
        }.items():  # fmt: skip
            patched.enter_context(mock.patch.object(posts, name, value))
        patched.enter_context(mock.patch.object(posts.GangPost, "_go_on_without", go_on_without))
        patched.enter_context(mock.patch.object(posts.GangPost, "_again", again))
        controller.busy += 1
        STAGE[0].spawn(controller, post.stand)
        yield told
        assert post.defect is None


def serves_anew(gang: Gang, before: str) -> bool:
    """Whether another run serves."""
    return set(gang.states()) == {"ready"} and gang.nodes[0].staged != before


@pytest.mark.parametrize("kind", ["power-off", "pause", "partition"])
@pytest.mark.parametrize("at", [0.0, *(3.0 + step / 4 for step in range(20))])
def test_a_guard_that_loses_a_node_in_its_own_restart_goes_on_without_it(at: float, kind: str) -> None:
    """`at`: seconds after a rank's death, so before the restart for it, in each of its steps, or after it."""
    world = World(seed=at)
    gang = Gang(world, 2)
    with simulated(world), controlled(gang) as (first, second):
        first.type("up")
        world.run(world.now + 20.0, gang.check)
        with guarded(gang, second, DEGRADE_S) as told:
            gang.strike(Fault("kill-rank", (0,), 0.0))
            world.run(world.now + at, gang.check)
            gang.strike(Fault(kind, (1,), 0.0))
            gang.net.lost |= {("n1", "c1"), ("c1", "n1")}
            world.run(world.now + DEGRADE_S + LATE_S, gang.check, done=lambda: bool(told.without))
            assert told.without == ("n1",), gang.told()


def test_a_guard_brings_a_gang_back_500_times_and_nothing_grows() -> None:
    turns = int(os.environ.get("DEATHS") or TURNS / min(smaller(), 10.0))
    world = World(seed="soak")
    gang, rng = Gang(world, 2), random.Random("soak")
    with simulated(world), controlled(gang) as (first, second):
        first.type("up")
        world.run(world.now + 20.0, gang.check)
        gang.armed = world.now
        assert set(gang.states()) == {"ready"}
        with guarded(gang, second) as told:
            held = []
            for turn in range(turns):
                fault = rng.choice(KINDS)
                before = gang.nodes[0].staged
                gang.strike(fault)
                world.run(world.now + BACK_S, gang.check, done=partial(serves_anew, gang, before))
                assert serves_anew(gang, before), (turn, fault, gang.told())
                world.run(world.now + 10.0 + 8.0 * rng.random(), gang.check)
                gang.forget()
                if turn in (turns // WARM_SHARE, turns - 1):
                    held.append(Held.now(gang))
    early, late = held
    assert told.decisions >= turns
    assert late.memory - early.memory < MOST_GROWN, held
    assert (late.descriptors, late.threads, late.files) == (early.descriptors, early.threads, early.files), held
