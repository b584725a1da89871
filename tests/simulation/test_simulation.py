"""The agents' own code on a simulated clock, network and disk: faults of a gang, and the conditions that must hold
after every step. `make simulate` plays more and writes tests/simulation/simulation.md."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.simulation import commanding
from tests.simulation.commanding import Scene
from tests.simulation.explore import Explored, pairs, sampled, single
from tests.simulation.gang import AT_ONCE, EPSILON_S, FAULTS, LATE_S, LEASE_S, PAIRS, Fault, Gang, Violated, simulated
from tests.simulation.seeded import BUGS, Bug
from tests.simulation.world import BEGIN_S, World
from tests.support.turns import drawn
from tests.support.waiting import slack, smaller

from orchestrator.node.network.link import RETRY_S
from orchestrator.protocol.report import AgentState

STEPS = 200_000
"""Steps in each of three tests; with the small cases a million on the reference machine, in two minutes."""
MILLION = 1_000_000
MINUTES_S = 120.0
"""Processor time for a million steps on the reference machine."""
PAIRS_PLAYED = 1200
"""Pairs played, of some forty thousand of two nodes; `make simulate` plays all."""
BUGS_PLAYED = 6
"""Seeded bugs that are looked for in a run."""


SLOWER = [1.0]
"""How many times slower than the reference machine this one was, at each test."""
SMALLER = [1.0]
"""How much smaller its samples were, at each test."""


def share(of: int) -> int:
    """On a slower machine, a sample of the cases."""
    SLOWER.append(min(slack(), 20.0))
    SMALLER.append(min(smaller(), 20.0))
    return int(of / SMALLER[-1])


PLAYED: list[Explored] = []
"""Played by all tests of this file, which one worker runs in order."""


def nothing_violated(explored: Explored) -> None:
    PLAYED.append(explored)
    assert explored.scenarios and not explored.violations, "\n".join(explored.violations[:3])


@pytest.mark.parametrize("size", [2, 3])
def test_one_fault_of_any_kind_anywhere_at_any_moment(size: int) -> None:
    explored = Explored()
    cases = list(single(size))
    for fault in random.Random(1).sample(cases, min(len(cases), share(len(cases)) + 40)):
        explored.play((fault,), size, 0)
    nothing_violated(explored)


@pytest.mark.parametrize("seed", range(20))
def test_members_join_a_leader_that_comes_last_without_waiting_for_a_tick(seed: int) -> None:
    """Nodes of a simulated gang are armed within 0.2 s of each other."""
    world = World(seed=seed)
    with simulated(world):
        gang = Gang(world, 4)
        gang.arm()
        world.run(world.now + 5.0, gang.check, done=lambda: set(gang.states()) == {AgentState.ARMED.value})
        assert world.now - BEGIN_S < 0.2 + RETRY_S + 0.05


def test_two_faults_of_two_nodes() -> None:
    explored, rng = Explored(), random.Random(drawn("simulation: two faults"))
    cases = list(pairs(2, (0.11, 2.3)))
    for two in rng.sample(cases, share(PAIRS_PLAYED)):
        explored.play(two, 2, 0)
    nothing_violated(explored)


@pytest.mark.parametrize("half", [0, 1])
def test_up_to_three_sampled_faults(half: int) -> None:
    nothing_violated(sampled(f"{half}/{drawn('simulation: sampled faults')}", share(STEPS)))


@pytest.mark.parametrize("scenes", [commanding.two_commands, commanding.interrupted])
def test_two_controllers_and_one_that_is_killed_or_stands_still_at_any_step(scenes: Any) -> None:
    cases = list(scenes())
    some = random.Random(drawn("simulation: two controllers")).sample(cases, max(12, share(len(cases))))
    nothing_violated(commanding.explore(iter(some), 0, STEPS))


def test_every_command_ends_whatever_befalls_a_node_and_is_never_healed() -> None:
    cases = list(commanding.unhealed())
    some = random.Random(drawn("simulation: unhealed")).sample(cases, max(30, share(len(cases))))
    nothing_violated(commanding.explore(iter(some), 0, STEPS))


def test_every_command_ends_with_two_faults_of_which_one_is_not_healed() -> None:
    rng, scenes = random.Random(drawn("simulation: half healed")), list(commanding.unhealed())
    nothing_violated(
        commanding.explore((commanding.half_healed(rng, scenes) for _ in range(max(30, share(len(scenes))))), 0, STEPS)
    )


def test_sampled_commands_faults_and_what_befalls_controllers() -> None:
    nothing_violated(commanding.sampled(drawn("simulation: sampled commands"), share(STEPS)))


def test_that_was_a_million_steps_within_two_minutes(request: pytest.FixtureRequest) -> None:
    names = {item.name.partition("[")[0] for item in request.session.items if item.path == request.path}
    if len(names) < len([name for name in globals() if name.startswith("test_")]):
        pytest.skip("not all of this file's tests run")
    steps, cpu_s = sum(one.steps for one in PLAYED), sum(one.cpu_s for one in PLAYED)
    assert steps >= MILLION / max(SMALLER), f"{steps:,} steps"
    assert cpu_s / steps * MILLION < MINUTES_S * max(SLOWER), f"{cpu_s:.0f} s of processor time for {steps:,} steps"


@pytest.mark.turns(play=BUGS_PLAYED)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_seeded_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(bug.scenarios[0], Scene) or not bug.violations()
    bug.put_in(monkeypatch)
    found = bug.violations()
    assert any(bug.violates in words for words in found), found


class AnyLife(RuleBasedStateMachine):
    """A gang of three with any faults, in any order."""

    @initialize(seed=st.integers(0, 1 << 16))
    def begin(self, seed: int) -> None:
        self.gang = Gang(World(seed=seed), 3)
        self.open = simulated(self.gang.world)
        self.open.__enter__()
        self.struck: list[Fault] = []
        self.gang.arm()
        self.on(3.0)
        self.gang.armed = self.gang.world.now
        self.gang.go()

    @rule(seconds=st.sampled_from((0.001, 0.05, 0.4, 1.1, 2.5, LEASE_S)))
    def on(self, seconds: float) -> None:
        self.gang.world.run(self.gang.world.now + seconds, self.gang.check)

    @rule(kind=st.sampled_from(sorted(FAULTS)), node=st.integers(0, 2), other=st.integers(1, 2),
          lasts=st.sampled_from((0.3, 1.5, 4.0, 9.0)))  # fmt: skip
    def strike(self, kind: str, node: int, other: int, lasts: float) -> None:
        where = (node, (node + other) % 3) if kind in PAIRS else (node,)
        fault = Fault(kind, where, self.gang.world.now, 0.0 if kind in AT_ONCE else lasts)
        self.struck.append(fault)
        self.gang.faults = self.struck
        self.gang.strike(fault)

    def teardown(self) -> None:
        if not hasattr(self, "open"):
            return
        try:
            self.on(9.0 + LEASE_S + EPSILON_S + 1.0)
            self.gang.check_verdict()
            if self.gang.ends:
                self.on(LATE_S)
                self.gang.check_nothing_left()
        finally:
            self.open.__exit__(None, None, None)


TestAnyLife = AnyLife.TestCase
TestAnyLife.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)


def test_a_violation_is_told_with_what_brings_it_again() -> None:
    explored = Explored()

    def broken(faults: Sequence[Fault], **_: object) -> Gang:
        raise Violated("so it is")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.simulation.explore.play", broken)
        explored.play((Fault("kill-rank", (1,), 3.5),), 2, 7)
    assert explored.violations == [
        "play((Fault(kind='kill-rank', where=(1,), at=3.5, lasts=0.0),), size=2, seed=7): so it is"
    ]
