"""Two controllers of one gang, which are paused, killed and cut off while nodes fail."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tests.simulation.controllers import COMMANDS, TURNS, Controller, controlled
from tests.simulation.explore import Explored
from tests.simulation.gang import AT_ONCE, EPSILON_S, FAULTS, LATE_S, LEASE_S, PAIRS, Fault, Gang, Violated, simulated
from tests.simulation.world import World

from orchestrator.model.deadlines import ARM_S
from orchestrator.node.agent.sides import LINK_S

ARMED_FOR_S = 30.0
"""An armed node that hears nothing more ends by itself after this."""
SETTLE_S = ARMED_FOR_S + LEASE_S + EPSILON_S + LATE_S
LONGEST_S = 400.0
"""The longest duration of commands, with locks of killed controllers (stale after 60 s) and pauses."""
UNHEALED_S = LEASE_S + 15.0
"""From a fault that nobody heals until the command has ended."""
UNLINKED_S = LINK_S + 15.0
"""The same for agents that can't reach each other, which before they are armed have a time of their own."""
UNLINKED = ("reset", "one-way", "partition")
STALLED_S = ARM_S + 15.0
"""The same for a disk that hangs: a verb there waits for its own deadline, since the node may be busy."""
BEFALLS = ("pause", "kill", "cut", "clock")
"""A controller."""
NODE_FAULTS = ("kill-rank", "kill-agent", "freeze", "partition", "stall", "power-off", "clock", "reset")


@dataclass(frozen=True)
class Typed:
    """A command on a controller, at so many seconds after the world began."""

    command: str
    controller: int
    at: float


@dataclass(frozen=True)
class Befalls:
    """kind: of BEFALLS; node: from which the controller is cut off."""

    kind: str
    controller: int
    at: float
    lasts: float = 0.0
    node: int = 0


@dataclass(frozen=True)
class Scene:
    """The commands, and the events during them."""

    typed: tuple[Typed, ...]
    befalls: tuple[Befalls, ...] = ()
    faults: tuple[Fault, ...] = ()
    ends_s: float = LONGEST_S
    """How long after its last event its commands have ended, in seconds."""

    @property
    def last(self) -> float:
        """When its last event comes."""
        events: tuple[Typed | Befalls | Fault, ...] = (*self.typed, *self.befalls, *self.faults)
        return max(one.at for one in events)

    @property
    def quiet(self) -> bool:
        """No events."""
        return not self.befalls and not self.faults


def play_commands(scene: Scene, *, size: int = 2, seed: object = 0) -> Gang:
    """Play one scene to its end. Raises Violated."""
    world = World(seed=(seed, scene, size))
    gang = Gang(world, size, faults=scene.faults)
    with simulated(world), controlled(gang) as controllers:
        gang.armed = world.now
        for typed in scene.typed:
            world.after(typed.at, lambda typed=typed: controllers[typed.controller].type(typed.command))  # type: ignore[misc]
        for one in scene.befalls:
            world.after(one.at, lambda one=one: _befall(gang, controllers[one.controller], one))  # type: ignore[misc]
        for fault in scene.faults:
            world.after(fault.at, lambda fault=fault: gang.strike(fault))  # type: ignore[misc]
        last = world.now + scene.last

        def idle() -> bool:
            return world.now > last and not any(one.busy and not one.killed for one in controllers)

        world.run(last + scene.ends_s, gang.check, done=idle)
        if not idle():
            raise Violated(f"a command does not end within {scene.ends_s:g} s: {_told(gang, controllers)}")
        world.run(world.now + SETTLE_S, gang.check)
        _check_whole(gang, controllers)
        if scene.quiet:
            _check_outcomes(scene, gang, controllers)
    return gang


def _befall(gang: Gang, controller: Controller, one: Befalls) -> None:
    if one.kind == "kill":
        controller.kill()
    elif one.kind == "pause":
        controller.pause(True)
        gang.world.after(one.lasts, lambda: controller.pause(False))
    elif one.kind == "clock":
        controller.wall_s += 3600.0
    else:
        name = gang.nodes[one.node].name
        pairs = {(controller.name, name), (name, controller.name)}
        gang.net.lost |= pairs
        gang.world.after(one.lasts, lambda: gang.net.lost.difference_update(pairs))


def _check_whole(gang: Gang, controllers: Sequence[Controller]) -> None:
    """A gang runs on all of its nodes or on none."""
    living = [node.engine_lives for node in gang.nodes if not node.paused]
    if any(living) and not all(living):
        raise Violated(f"a part of the gang runs: {_told(gang, controllers)}")


def _check_outcomes(scene: Scene, gang: Gang, controllers: Sequence[Controller]) -> None:
    """Without events, commands succeed or find the lock held, and their messages are true."""
    for controller in controllers:
        for outcome in controller.outcomes:
            if not outcome.endswith(": done") and "LockHeld" not in outcome:
                raise Violated(f"a command failed: {_told(gang, controllers)}")
    last = max(scene.typed, key=lambda one: one.at)
    if (
        last.command == "down"
        and "down: done" in controllers[last.controller].outcomes[-1:]
        and any(node.engine_lives for node in gang.nodes)
    ):
        raise Violated(f"`down` is done and something runs: {_told(gang, controllers)}")
    done = [outcome for controller in controllers for outcome in controller.outcomes if outcome.endswith(": done")]
    if done and all(outcome != "down: done" for outcome in done) and set(gang.states()) != {"ready"}:
        raise Violated(f"`up` is done and the gang is not ready: {_told(gang, controllers)}")


def _told(gang: Gang, controllers: Sequence[Controller]) -> str:
    outcomes = {controller.name: controller.outcomes for controller in controllers}
    return f"{outcomes} {gang.states()} {[node.engine_lives for node in gang.nodes]}; {gang.told()}"


MOMENTS = (0.0, 0.003, 0.01, 0.3, 1.0, 3.2, 12.0)


def two_commands() -> Iterator[Scene]:
    """Every pair of commands of two controllers, without events."""
    for first, second in itertools.product(COMMANDS, repeat=2):
        for at in MOMENTS:
            yield Scene((Typed(first, 0, 0.0), Typed(second, 1, at)))


def interrupted() -> Iterator[Scene]:
    """A controller killed or paused at any of its steps, while another one tries, and retries."""
    for command, kind, step in itertools.product(("up", "restart"), ("kill", "pause"), range(24)):
        befalls = Befalls(kind, 0, 0.0005 + step * 0.0011, 0.0 if kind == "kill" else 75.0)
        yield Scene((Typed(command, 0, 0.0), Typed("up", 1, 0.5), Typed("restart", 1, 64.0)), (befalls,))


UNHEALED_AT = (-0.3, 0.001, 0.006, 0.02, 0.3, 0.9, 1.6, 2.4, 3.4, 4.6)
"""Seconds from the beginning of a command: before it, while it connects, locks, stages and arms, from go to ready."""
SERVES_S = 8.0
"""After `up`, the gang serves."""


def unhealed() -> Iterator[Scene]:
    """One command, and whatever can befall a node, or the path to it, at any moment, without an end."""
    kinds = [kind for kind in (*FAULTS, "cut") if kind not in ("clock", "stop", "stop-now")]
    for command, kind, node, moment in itertools.product((*COMMANDS, *TURNS), kinds, (0, 1), UNHEALED_AT):
        begins = 0.5 if command == "up" else SERVES_S
        typed = [Typed(command, 0, begins)]
        typed += [Typed("up", 0, 0.0)] if command != "up" else []
        ends_s = {"stall": STALLED_S, **dict.fromkeys(UNLINKED, UNLINKED_S)}.get(kind, UNHEALED_S)
        if command == "down" or (command, kind) == ("change", "stall"):
            ends_s = LONGEST_S  # what an operator wants to be gone is waited for, and so is the previous plan's start
        elif command == "change" and ends_s != UNHEALED_S:
            ends_s *= 2  # the previous plan's start has its own time
        if kind == "cut":
            yield Scene(tuple(typed), (Befalls(kind, 0, begins + moment, 1e9, node),), ends_s=ends_s)
        else:
            where = (node, 1 - node) if kind in PAIRS else (node,)
            yield Scene(tuple(typed), (), (Fault(kind, where, begins + moment),), ends_s=ends_s)


def half_healed(rng: random.Random, scenes: Sequence[Scene]) -> Scene:
    """One of the scenes above, and beside it a fault of either node that is healed."""
    scene = rng.choice(scenes)
    kind = rng.choice([kind for kind in FAULTS if kind not in AT_ONCE])
    node = rng.choice((0, 1))
    where = (node, 1 - node) if kind in PAIRS else (node,)
    at = max(0.0, round(scene.last + rng.uniform(-2.0, 4.0), 4))
    other = Fault(kind, where, at, rng.choice((0.5, 4.0, 9.0)))
    return replace(scene, faults=(*scene.faults, other), ends_s=LONGEST_S)


def sample(rng: random.Random) -> Scene:
    """One to three commands, and up to two events."""
    typed = tuple(
        Typed(rng.choice(list(COMMANDS)), rng.choice((0, 1)), round(rng.choice((0.0, 0.5, 3.0, 5.0)) * rng.random(), 4))
        for _ in range(rng.randint(1, 3))
    )
    befalls, faults = [], []
    for _ in range(rng.randint(0, 2)):
        at = round(rng.choice((0.02, 0.4, 5.0)) * rng.random(), 4)
        if rng.random() < 0.5:
            lasts = rng.choice((0.5, 9.0, 75.0))
            befalls.append(Befalls(rng.choice(BEFALLS), rng.choice((0, 1)), at, lasts, rng.choice((0, 1))))
        else:
            kind = rng.choice(NODE_FAULTS)
            where = (0, 1) if kind == "reset" else (rng.choice((0, 1)),)
            faults.append(Fault(kind, where, at, 0.0 if kind in AT_ONCE else rng.choice((0.0, 0.5, 4.0, 9.0))))
    return Scene(typed, tuple(befalls), tuple(faults))


def explore(scenes: Iterator[Scene], seed: object, steps: int) -> Explored:
    """Play scenes until so many steps are done."""
    explored = Explored()
    for scene in scenes:
        if explored.steps >= steps or len(explored.violations) >= 3:
            break
        explored.count(scene, lambda scene=scene: play_commands(scene, seed=seed))  # type: ignore[misc]
    return explored


def sampled(seed: object, steps: int) -> Explored:
    """Play so many steps of sampled scenes."""
    rng = random.Random(repr(seed))
    return explore((sample(rng) for _ in itertools.count()), seed, steps)
