"""Bugs put in on purpose, one of each kind, to check that the simulation finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from tests.simulation.commanding import Befalls, Scene, Typed, play_commands
from tests.simulation.explore import Explored
from tests.simulation.gang import Fault
from tests.simulation.node import SimulatedAgent

from orchestrator.gang.steps import down
from orchestrator.node.agent import agent, lifecycle, membership, sides
from orchestrator.node.agent.causes import choose
from orchestrator.node.agent.membership import Message
from orchestrator.node.engine.guardian import AgentWatch
from orchestrator.node.network import wire
from orchestrator.node.verbs import lock

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, eq=False)
class Bug:
    """scenarios: faults of a gang, or commands on two controllers; at least one of them shows the bug. violates: the
    invariant, by words of its message."""

    name: str
    put_in: Patch
    scenarios: Sequence[tuple[Fault, ...] | Scene]
    violates: str

    def violations(self) -> list[str]:
        """What its scenarios violate now."""
        explored = Explored()
        for one in self.scenarios:
            if len(explored.violations) >= 3:
                break
            if isinstance(one, Scene):
                explored.count(one, partial(play_commands, one, seed=0))
            else:
                explored.play(one, 2, 0)
        return explored.violations


def _attribute(target: Any, name: str, value: Any) -> Patch:
    return lambda patch: patch.setattr(target, name, value)


def _by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    join = SimulatedAgent.join_link

    def joined(self: SimulatedAgent) -> Any:
        node = self.node
        self.now = lambda: node.world.now + node.wall_s
        return join(self)

    patch.setattr(SimulatedAgent, "join_link", joined)


def _waits_for_the_disk(patch: pytest.MonkeyPatch) -> None:
    step = agent.Agent.step

    def stepped(self: SimulatedAgent, ready: set[int]) -> None:
        if not self.node.disk_stalls:
            step(self, ready)

    patch.setattr(SimulatedAgent, "step", stepped, raising=False)


def _forgets_what_came(patch: pytest.MonkeyPatch) -> None:
    receive = wire.Wire.receive

    def received(self: wire.Wire) -> list[Message]:
        if self._unsent is not None:
            raise self._unsent
        return receive(self)

    patch.setattr(wire.Wire, "receive", received)


def _says_nothing_again(patch: pytest.MonkeyPatch) -> None:
    for side, name in (
        (sides.LeadersPart, "_say_again"),
        (sides.MembersPart, "_say_again"),
        (sides.LeadersPart, "_hear_end"),
    ):
        patch.setattr(side, name, lambda *_: [])
    patch.setattr(membership.Membership, "may_come_back", lambda _: False)  # nor is anything kept for later


def _keeps_on_draining(patch: pytest.MonkeyPatch) -> None:
    follow = lifecycle.Lifecycle._follow_loss

    def followed(self: lifecycle.Lifecycle, *found: Any) -> Any:
        return [] if self.state == "draining" else follow(self, *found)

    patch.setattr(lifecycle.Lifecycle, "_follow_loss", followed)


def _only_members_expire(self: membership.Membership, now: float) -> Any:
    return [] if self.leads else EXPIRED(self, now)


PAUSED = [
    Scene((Typed("restart", 0, 0.0), Typed("restart", 1, 64.0)), (Befalls("pause", 0, 0.004 + step * 0.0007, 75.0),))
    for step in range(40)
]
"""The first controller pauses at one of its steps for so long that another one takes over its lock."""

EXPIRED = membership.Membership._expired

BUGS = (
    Bug(
        "a reset counts as a death",
        _attribute(membership, "RECONNECT_S", 0.0),
        [(Fault("reset", (0, 1), 3.5, 0.5),)],
        "ended although all agents live",
    ),
    Bug(
        "messages sent while the link was down are not sent again",
        _says_nothing_again,
        [(Fault("reset", (0, 1), 3.5, 0.5), Fault("kill-rank", (1,), 4.0 + late / 10)) for late in range(-3, 3)],
        "outlives its gang",
    ),
    Bug(
        "silence never ends the lease",
        _attribute(membership.Membership, "_expired", lambda *_: []),
        [(Fault("power-off", (1,), 3.5),)],
        "outlives its gang",
    ),
    Bug(
        "one direction of the network is enough",
        _attribute(membership.Membership, "_expired", _only_members_expire),
        [(Fault("one-way", (1, 0), 2.0, 30.0), Fault("power-off", (1,), 3.0))],
        "outlives its gang",
    ),
    Bug(
        "a guardian trusts its agent forever",
        _attribute(AgentWatch, "is_silent", lambda *_: False),
        [(Fault("freeze", (1,), 3.5, 60.0),)],
        "outlives its gang",
    ),
    Bug(
        "a guardian does not notice that its agent is gone",
        _attribute(AgentWatch, "over", lambda *_: False),
        [(Fault("kill-agent", (1,), 3.5),)],
        "outlives its gang",
    ),
    Bug(
        "the loop waits for the disk",
        _waits_for_the_disk,
        [(Fault("stall", (1,), 3.5, 9.0),)],
        "ended although all agents live",
    ),
    Bug(
        "time is the wall clock's",
        _by_the_wall_clock,
        [(Fault("clock", (node,), 3.5 + tenth / 10),) for node in (0, 1) for tenth in range(10)],
        "ended although all agents live",
    ),
    Bug("the verdict names the node that decides it",
        _attribute(sides, "choose", lambda told: replace(choose(told), node="n0")),
        [(Fault("kill-rank", (1,), 3.5),)], "which had no fault"),
    Bug(
        "messages that arrived before a connection's end are discarded",
        _forgets_what_came,
        [(Fault("pause", (0,), 0.05, 9.0),)],
        "which had no fault",
    ),
    Bug(
        "a drain waits for a node that is gone",
        _keeps_on_draining,
        [(Fault("stop", (1,), 3.5), Fault("power-off", (0,), 3.6))],
        "outlives its gang",
    ),
    Bug(
        "a node obeys a former holder of its lock",
        _attribute(lock, "refuse_a_former_holder", lambda *_, **__: None),
        PAUSED,
        "obeys a former holder",
    ),
    Bug(
        "a lock is stale at once",
        _attribute(lock, "STALE_S", 0.0),
        [Scene((Typed("up", 0, 0.0), Typed("restart", 1, 0.003 * step))) for step in range(1, 12)],
        "a command failed",
    ),
    Bug(
        "the stop before another run is skipped",
        _attribute(down, "stop_gangs", lambda *_, **__: ()),
        [Scene((Typed("up", 0, 0.0), Typed("down", 1, 5.0)))],
        "`down` is done and something runs",
    ),
)  # fmt: skip
