"""A gang of simulated nodes: its possible faults, and the conditions that must hold after every step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from unittest import mock

from tests.simulation.network import Net
from tests.simulation.node import Engine, Node, SimulatedRun
from tests.simulation.world import World

from orchestrator.node.agent import clock, ending
from orchestrator.node.network import link
from orchestrator.protocol.report import AgentState, Cause
from orchestrator.protocol.run_files import GoalOrder
from orchestrator.protocol.staging import Canary, Endpoint, Ports, ServiceOrder, StopOrder, Watch

LEASE_S = 6.0
PORT = 7700
HTTP = 8000
EPSILON_S = 7.0
"""Time beyond the lease: an attribution (HOLD_S), a reconnection (RECONNECT_S), the guardian's look, the killing."""
LATE_S = 20.0
"""Agents that have ended their engine wait for each other (MEMBERS_END_S) before they go."""
STOP = StopOrder(leader_signal="TERM", drain_s=20.0, shutdown_s=2.0)


class Violated(AssertionError):
    """An invariant does not hold."""


@dataclass(frozen=True)
class Fault:
    """kind: as in FAULTS; where: node numbers; at: seconds after the gang was armed; lasts: 0 if instantaneous."""

    kind: str
    where: tuple[int, ...]
    at: float
    lasts: float = 0.0


@dataclass
class Gang:
    """nodes[0] leads."""

    world: World
    size: int = 2
    nodes: list[Node] = field(default_factory=list)
    name: str = "g"
    first: int = 0
    """The number of its first node."""
    model: str = "m"
    """That it was started with."""
    beside: Net | None = None
    """The network that it shares with others; None for one of its own."""
    net: Net = field(init=False)
    origins: set[str] = field(default_factory=set)
    """Nodes with an injected fault."""
    stopped: bool = False
    """An operator gave the order to stop."""
    armed: float | None = None
    ends: dict[str, float] = field(default_factory=dict)
    """By run: when the first of its engines or ranks died."""
    resumed: float = 0.0
    """When the last paused machine continued."""
    faults: Sequence[Fault] = ()

    def __post_init__(self) -> None:
        self.net = self.beside or Net(self.world)
        self.nodes = [Node(f"n{self.first + number}", self.world, self.net) for number in range(self.size)]
        for node in self.nodes:
            node.fellows = [other for other in self.nodes if other is not node]

    def know_each_other(self) -> None:
        """Each node's gang, its place in it, and its fellows: after a change of the nodes."""
        for rank, node in enumerate(self.nodes):
            node.gang, node.rank, node.fellows = self, rank, [other for other in self.nodes if other is not node]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes)

    @property
    def url(self) -> str:
        """Where it serves."""
        return f"http://{self.names[0]}:{HTTP}"

    def run_of(self, rank: int, run_id: str = "r1") -> SimulatedRun:
        return SimulatedRun(
            folder=f"/nowhere/gangs/{self.name}/runs/r", run_id=run_id, gang=self.name, node=self.names[rank],
            node_rank=rank, nnodes=self.size, members=self.names, device="cpu",
            model=self.model, lease_s=LEASE_S, armed_for_s=30.0,
            tp_ranks=(2 * rank, 2 * rank + 1), leader=Endpoint(address=self.names[0], port=PORT),
            service=ServiceOrder(url=self.url) if rank == 0 else None,
            canary=Canary(prompt="") if rank == 0 else None, watch=Watch(stop=STOP),
            ports=Ports(check_free=(Endpoint(port=HTTP),)),
        )  # fmt: skip

    def arm(self) -> None:
        for rank, node in enumerate(self.nodes):
            run = self.run_of(rank)
            self.world.after(0.2 * self.world.rng.random(), lambda node=node, run=run: node.arm(run))  # type: ignore[misc]

    def order(self, goal: str, node: Node) -> None:
        node.order = GoalOrder(goal=goal)
        node.wake()

    def go(self) -> None:
        for node in self.nodes:
            self.order("run", node)

    def states(self) -> list[str]:
        return [node.agent.state.value if node.agent is not None else "none" for node in self.nodes]

    # what must hold

    def check(self) -> None:
        """After every step."""
        running: str | None = None
        for node in self.nodes:
            for engine in node.engines:
                lives = engine.parent or engine.ranks > 0
                if lives and running not in (None, engine.run_id):
                    raise Violated(f"two runs at once: {sorted((str(running), engine.run_id))}; {self.told()}")
                running = engine.run_id if lives else running
                if engine.run_id not in self.ends:
                    if engine.dead or not lives:
                        self.ends[engine.run_id] = self.world.now
                elif lives:
                    self._outlives_nobody(node, engine)

    def _outlives_nobody(self, node: Node, engine: Engine) -> None:
        ended = self.ends[engine.run_id]
        late = max(ended + LEASE_S, self.resumed) + EPSILON_S
        if self.world.now > late and not node.paused:
            raise Violated(f"{node.name}'s engine outlives its gang: {self.world.now - ended:.1f} s; {self.told()}")

    def told(self) -> str:
        """For the reader of a violation."""
        lines = [f"faults {self.faults}; origins {sorted(self.origins)}; armed at {self.armed}"]
        for node in self.nodes:
            if node.agent is not None:
                course = node.agent.lifecycle
                lines.append(
                    f"  {node.name} {course.state.value} gone={node.agent.gone} engine={node.engine_lives} cause="
                    f"{course.cause.text if course.cause else None!r} verdict="
                    f"{course.verdict.text if course.verdict else None!r}"
                )
                lines += [f"    {at:.3f} {what} {details}" for at, what, details in node.agent.record.events[-14:]]  # type: ignore[attr-defined]
        return "\n".join(lines)

    def check_verdict(self) -> None:
        """At the end: one verdict, and it names a real origin."""
        leader = self.nodes[0]
        agents = [node.agent for node in self.nodes if node.agent is not None]
        for agent in agents:
            for cause in (agent.lifecycle.cause, agent.lifecycle.verdict):
                if cause is not None and not cause.secondary and not self._befallen(cause):
                    raise Violated(f"{agent.run.node} names {cause.node}, which had no fault: {self.told()}")
        if leader.agent is None or not leader.agent.lifecycle.verdict or self.stopped:
            return
        named = leader.agent.lifecycle.verdict.node
        for agent in agents[1:]:
            verdict = agent.lifecycle.verdict
            if verdict is not None and verdict.node != named and not self._amended(leader):
                raise Violated(f"two verdicts, {named} and {verdict.node}: {self.told()}")

    def _befallen(self, cause: Cause) -> bool:
        """When all others fall silent at once, the node may well be cut off itself."""
        alone = "is disconnected" in cause.text and {*self.names} - {cause.node} <= self.origins
        return cause.node in self.origins or alone

    def _amended(self, leader: Node) -> bool:
        """A better report of the cause that came late; nodes that had left did not get it."""
        agent = leader.agent
        return agent is not None and agent.lifecycle.cause is not None and agent.lifecycle.cause.secondary

    def check_all_serve(self) -> None:
        """Nothing happened that can end the gang."""
        if set(self.states()) != {"ready"} or not all(node.engine_lives for node in self.nodes):
            raise Violated(f"ended although all agents live and can talk: {self.told()}")

    def check_nothing_left(self) -> None:
        for node in self.nodes:
            if node.agent_lives and not (node.frozen or node.paused):
                raise Violated(f"{node.name}'s agent is still there: {self.told()}")

    @property
    def over(self) -> bool:
        """Every agent has ended, and no engine lives."""
        return self.armed is not None and not any(node.agent_lives or node.engine_lives for node in self.nodes)

    def forget(self) -> None:
        """Forget finished runs, in a gang that lives long."""
        for node in self.nodes:
            node.engines = [engine for engine in node.engines if engine.lives]
        self.ends = {}

    # injected faults

    def strike(self, fault: Fault) -> None:
        """Start the fault, and end it if it has an end."""
        struck = FAULTS[fault.kind](self, *(self.nodes[number] for number in fault.where))
        next(struck)
        if fault.lasts:
            self.world.after(fault.lasts, lambda: next(struck, None))


Strikes = Callable[..., Iterator[None]]
"""What a fault does to a gang and the nodes that it strikes; after the yield, how it ends."""


def _at_node(do: Callable[[Node], None], undo: Callable[[Node], None] = lambda _: None) -> Strikes:
    def fault(gang: Gang, node: Node) -> Iterator[None]:
        gang.origins.add(node.name)
        do(node)
        yield
        undo(node)

    return fault


def _pause(gang: Gang, node: Node) -> Iterator[None]:
    gang.origins.add(node.name)
    node.pause(True)
    yield
    gang.resumed = gang.world.now
    node.pause(False)


def _power_off(gang: Gang, node: Node) -> Iterator[None]:
    """Everything on the node dies, and nobody is notified."""
    gang.origins.add(node.name)
    gang.net.lost |= {pair for other in gang.nodes for pair in ((node.name, other.name), (other.name, node.name))}
    node.off = True
    for engine in node.engines:
        engine.parent, engine.ranks = False, 0
    if node.guardian is not None:
        node.guardian.alive = False
    if node.agent is not None:
        node.agent.gone = True
    yield


def _one_way(gang: Gang, source: Node, target: Node) -> Iterator[None]:
    return _lose(gang, {source.name, target.name}, {(source.name, target.name)})


def _partition(gang: Gang, alone: Node) -> Iterator[None]:
    others = {*gang.names} - {alone.name}
    return _lose(gang, {*gang.names}, {pair for name in others for pair in ((name, alone.name), (alone.name, name))})


def _lose(gang: Gang, origins: set[str], pairs: set[tuple[str, str]]) -> Iterator[None]:
    gang.origins |= origins
    gang.net.lost |= pairs
    gang.net.changed()
    yield
    gang.net.lost -= pairs
    gang.net.changed()


def _reset(gang: Gang, one: Node, other: Node) -> Iterator[None]:
    pair = {one.name, other.name}
    gang.origins |= pair
    gang.net.rejected.add(frozenset(pair))
    gang.net.changed()
    gang.net.world.after(0.001, lambda: None)
    yield
    gang.net.rejected.discard(frozenset(pair))


def _order(goal: str) -> Strikes:
    def fault(gang: Gang, node: Node) -> Iterator[None]:
        gang.stopped = True
        gang.order(goal, node)
        yield

    return fault


def _stall(_: Gang, node: Node) -> Iterator[None]:
    node.stall_disk(True)
    yield
    node.stall_disk(False)


def _step_clock(_: Gang, node: Node) -> Iterator[None]:
    node.wall_s += 3600.0
    yield


FAULTS: dict[str, Strikes] = {
    "kill-rank": _at_node(lambda node: node.engine.kill_rank() if node.engine is not None else None),
    "kill-agent": _at_node(lambda node: node.kill_agent()),
    "kill-guardian": _at_node(lambda node: node.kill_guardian()),
    "kill-both": _at_node(lambda node: node.kill_both()),
    "freeze": _at_node(lambda node: node.freeze(True), lambda node: node.freeze(False)),
    "pause": _pause,
    "power-off": _power_off,
    "reset": _reset,
    "one-way": _one_way,
    "partition": _partition,
    "stall": _stall,
    "clock": _step_clock,
    "stop": _order("stop"),
    "stop-now": _order("stop-now"),
}
PAIRS = ("reset", "one-way")
"""Faults of two nodes."""
HARMLESS = ("stall", "clock")
AT_ONCE = ("kill-rank", "kill-agent", "kill-guardian", "kill-both", "power-off", "clock", "stop", "stop-now")


def may_end(faults: Sequence[Fault]) -> bool:
    """Some of them may end the gang: a death, an order, or silence that looks like a death."""
    lasting = [fault for fault in faults if fault.kind not in HARMLESS]
    together = sum(fault.lasts for fault in lasting)
    resets = any(fault.kind == "reset" for fault in lasting)
    return any(fault.kind in AT_ONCE for fault in lasting) or together > (1.0 if resets else LEASE_S - 3.0)


@contextlib.contextmanager
def simulated(world: World) -> Iterator[None]:
    """The node's modules get the machine's answers from the world."""
    stand_in = SimpleNamespace(monotonic=lambda: world.now, time=lambda: world.now)
    with (
        mock.patch.object(clock, "time", stand_in),
        mock.patch.object(link, "port_failure", lambda *_: None),
        mock.patch.object(ending, "scratch", mock.Mock()),
    ):
        yield


def play(faults: Sequence[Fault], *, size: int = 2, seed: object = 0) -> Gang:
    """Play one scenario from arming to its end. Raises Violated."""
    world = World(seed=(seed, faults, size))
    gang = Gang(world, size, faults=faults)
    with simulated(world):
        gang.arm()
        gang.world.run(world.now + 20.0, gang.check, done=lambda: set(gang.states()) == {AgentState.ARMED.value})
        gang.armed = world.now
        for fault in faults:
            world.after(fault.at, lambda fault=fault: gang.strike(fault))  # type: ignore[misc]
        world.after(0.1, gang.go)
        last = max((fault.at + fault.lasts for fault in faults), default=0.0)
        world.run(world.now + max(last, 4.0) + LEASE_S + EPSILON_S + 1.0, gang.check, done=lambda: gang.over)
        if not may_end(faults):
            gang.check_all_serve()
        gang.check_verdict()
        if gang.ends:
            world.run(world.now + LATE_S, gang.check, done=lambda: gang.over)
            gang.check_nothing_left()
    return gang
