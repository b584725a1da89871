"""One node of a simulated gang: production's agent over a simulated engine, guardian's process, network
and disk."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.simulation.network import Net, SimulatedSockets
from tests.simulation.world import World

from orchestrator.node.agent.agent import Agent
from orchestrator.node.agent.record import Job, Now, Record
from orchestrator.node.agent.staged_run import Run
from orchestrator.node.engine.guardian import BEAT, GO, RELEASE, AgentWatch
from orchestrator.node.engine.service import CanaryResult
from orchestrator.node.engine.tree import ProcessDeath, Rank
from orchestrator.node.engine.vitality import Probe
from orchestrator.node.engine.watch import LogWatch
from orchestrator.node.network.link import REPORT_S, DeathReport
from orchestrator.node.network.nccl_transport import Rails
from orchestrator.node.supervision import Death
from orchestrator.protocol.message import schema
from orchestrator.protocol.planned import NodeNetwork
from orchestrator.protocol.report import AgentState, RankState, Report
from orchestrator.protocol.run_files import GoalOrder
from orchestrator.protocol.staging import ServiceOrder

KEY = b"k" * 32
LOADS_S = 1.0
"""From the engine's start until its ranks' processes exist."""
PROBE_S = 20.0
"""More seldom than a service does it, and often enough for a view of it."""
ANSWERS_S = 2.0
"""From the start of the leader's engine until it answers, if all others have loaded."""
DRAINS_S = 0.7
GUARDIAN_LOOKS_S = 1.0
"""select's timeout in the guardian's loop."""
KILLED_S = 0.02
LATENCY = 0.0005


@schema(frozen=True, slots=True, kw_only=True)
class SimulatedRun(Run):
    """A run without files."""

    def link_key(self) -> bytes:
        return KEY

    def authorization(self) -> str:
        return ""


@dataclass
class Engine:
    """The engine's processes on one node. Its ranks do not notice a dead peer, as in an NCCL collective."""

    node: Node
    run_id: str
    parent: bool = False
    dead: list[Death] = field(default_factory=list)
    """Ranks that have died and were not checked yet."""
    ranks: int = 0
    began: float = 0.0

    @property
    def lives(self) -> bool:
        return self.parent or self.ranks > 0

    def start(self) -> None:
        self.parent, self.began = True, self.node.world.now
        self.node.world.after(LOADS_S * (0.5 + self.node.world.rng.random()), self._load)

    def _load(self) -> None:
        if self.parent:
            self.ranks = self.node.ranks
            self.node.wake()

    def kill_rank(self) -> None:
        if self.ranks:
            self.ranks -= 1
            self.dead.append(Death(signal=signal.SIGKILL))
            self.node.wake()

    def end(self, death: Death) -> None:
        """The parent ends, and its ranks with it."""
        if self.parent:
            self.parent, self.ranks = False, 0
            if self.node.guardian is not None:
                self.node.guardian.reaped(death)

    def kill(self) -> None:
        if self.parent and self.node.guardian is not None:
            self.node.guardian.reaped(Death(signal=signal.SIGKILL))
        self.parent, self.ranks = False, 0


@dataclass
class SimulatedTree:
    """Replaces the engine's process tree."""

    node: Node
    ranks: list[Rank] = field(default_factory=list)
    container: None = None
    stopped: dict[int, str] = field(default_factory=dict)
    compilers: tuple[str, ...] = ()
    ever: set[int] = field(default_factory=set)
    watched: bool = False
    parents_end: bool = False

    @property
    def engine(self) -> Engine | None:
        return self.node.engine

    @property
    def complete(self) -> bool:
        return self.engine is not None and self.engine.ranks == self.node.ranks

    def descriptors(self) -> Iterator[tuple[int, int]]:
        return iter(())

    def step(self, now: float, ready: set[int]) -> list[ProcessDeath]:
        if self.engine is None:
            return []
        for rank in self.ranks:
            rank.state = RankState.ALIVE if self.complete else RankState.EXPECTED
        died, self.engine.dead = self.engine.dead, []
        return [ProcessDeath(self.ranks[0], death) for death in died]

    def living(self) -> list[Any]:
        return [self.engine] if self.engine is not None and self.engine.lives else []

    def kill(self) -> int:
        living = len(self.living())
        if living and self.engine is not None:
            self.node.world.after(KILLED_S, self.engine.kill)
        return living

    def signal_parent(self, parent: tuple[int, int], number: int) -> None:
        if self.engine is not None:
            self.node.world.after(DRAINS_S, partial(self.engine.end, Death(exit_code=0)))

    def dying_launcher(self) -> None: ...

    def let_go(self) -> None: ...

    def reap_all(self) -> None: ...


@dataclass
class SimulatedLog:
    """The log of an engine that writes nothing."""

    watch: LogWatch = field(default_factory=LogWatch)
    remarks: list[str] = field(default_factory=list)
    rails: Rails = field(default_factory=lambda: Rails(NodeNetwork()))
    pipe: int = -1

    def read(self) -> bool:
        return True

    def read_last_words(self, meanwhile: Callable[[], None]) -> None: ...

    def close(self) -> None: ...


class NoMemory:
    """A node without GPUs."""

    places: dict[int, str] = {}  # noqa: RUF012 - as GpuMemory has it

    def take(self, now: float) -> bool:
        return False

    def waiting(self) -> tuple[str, ...]:
        return ()

    def close(self) -> None: ...


@dataclass
class SimulatedDisk(Now):
    """Writes during a stall are done when it ends; the agent waits for none of them."""

    node: Node
    waiting: dict[str, Job] = field(default_factory=dict)
    stalls: bool = False

    def put(self, job: Job, *, replacing: str = "", size: int = 0) -> None:
        if replacing not in ("goal", "report"):
            return  # nothing here reads it
        self.waiting[replacing] = job
        if not self.stalls:
            self.catch_up()

    def catch_up(self) -> None:
        while self.waiting:
            self.waiting.pop(next(iter(self.waiting)))()

    def remarks(self) -> list[str]:
        return ["the state directory does not respond: writes to it hang"] if self.stalls else []


@dataclass
class SimulatedRecord(Record):
    """A record whose file is a value of the node."""

    events: list[tuple[float, str, dict[str, Any]]] = field(default_factory=list)
    node: Any = None

    def flush(self, *, force: bool = False) -> None:
        value, now = self.value, self.node.world.now
        if force or value != self._written or now - self._written_at >= 1.0:
            self._written, self._written_at = value, now
            self.disk.put(lambda: self.node.note_report(value), replacing="report")

    def event(self, what: str, **details: Any) -> None:
        self.events.append((self.node.world.now, what, details))


@dataclass
class SimulatedService:
    """Probes of the leader's engine: it answers once every node's ranks have loaded."""

    node: Node
    wake: int = -1
    probed: float | None = None
    accepted: bool = False

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def take(self) -> list[Probe | CanaryResult]:
        engine, now = self.node.engine, self.node.world.now
        if engine is None or now - engine.began < ANSWERS_S or not self.node.everybody_loaded():
            return []
        found: list[Probe | CanaryResult] = []
        first = self.probed is None
        if self.probed is None or now - self.probed >= PROBE_S:
            self.probed = now
            found.append(Probe(True, now, now, at=now))
        if not first and not self.accepted:
            self.accepted = True
            found.append(CanaryResult("Paris"))
        return found


class Channel:
    """The agent's end of its guardian's socket pair."""

    def __init__(self) -> None:
        self.closed = False

    def fileno(self) -> int:
        return -1 if self.closed else 999_999

    def close(self) -> None:
        self.closed = True


@dataclass
class SimulatedGuardian:
    """Both ends: what the agent holds, and the process with what it concludes (vigil.py)."""

    node: Node
    vigil: AgentWatch
    pid: int = 0
    channel: Channel = field(default_factory=Channel)
    alive: bool = True
    logging_in: bool = False
    frozen: bool = False
    words: list[dict[str, Any]] = field(default_factory=list)
    obituary: DeathReport | None = None
    unheard: list[bytes] = field(default_factory=list)

    # the agent's end

    def go(self) -> None:
        self.say(GO)

    def beat(self) -> None:
        self.say(BEAT)

    def messages(self) -> list[dict[str, Any]] | None:
        if self.channel.closed:
            return []
        if self.words:
            words, self.words = self.words, []
            return words
        return [] if self.alive else None

    def close(self) -> None:
        self.say(RELEASE)
        self.channel.close()
        self.say(b"")

    # the process

    def say(self, words: bytes) -> None:
        """Data from its agent, b'' for the agent's end."""
        self.unheard.append(words)
        self.step()

    def reaped(self, death: Death) -> None:
        if self.alive and not self.frozen:
            status = death.signal or (death.exit_code or 0) << 8
            self.words.append({"exited": self.node.engine_pid, "status": status})
            self.node.wake()

    def look(self) -> None:
        """Its loop, at least once a second."""
        if self.alive:
            self.step()
            self.node.world.after(GUARDIAN_LOOKS_S, self.look)

    def step(self) -> None:
        if not self.alive or self.frozen or self.node.paused:
            return
        now = self.node.world.now
        while self.unheard:
            words = self.unheard.pop(0)
            if self.vigil.hear(now, words):
                self.node.start_engine()
                self.words.append({"started": self.node.engine_pid, "start": 1})
                self.node.wake()
        if self.vigil.over(now):
            self._end(now)

    def _end(self, now: float) -> None:
        self.alive = False
        if self.vigil.reports_death(now):
            sockets = SimulatedSockets(self.node.net, self.node.name, lambda: None)
            self.obituary = DeathReport(self.node.run, now + REPORT_S, sockets)
            self._report(self.obituary, sockets)
        if self.node.engine is not None:
            self.node.world.after(KILLED_S, self.node.engine.kill)
        if self.vigil.is_silent(now):
            self.node.kill_agent()

    def _report(self, obituary: DeathReport, sockets: SimulatedSockets) -> None:
        if obituary.step(self.node.world.now):
            sockets.close_all()
        else:
            self.node.world.after(0.02, lambda: self._report(obituary, sockets))


class SimulatedAgent(Agent):
    """The agent, with the machine's answers taken from its node."""

    node: Node

    def _service(self, order: ServiceOrder) -> Any:
        return SimulatedService(self.node)

    def _read_order(self) -> None:
        self.order = self.node.order


@dataclass
class Node:
    """State directory, processes and clocks of one machine."""

    name: str
    world: World
    net: Net
    ranks: int = 2
    run: SimulatedRun = field(init=False, repr=False)
    fellows: list[Node] = field(default_factory=list)
    agent: SimulatedAgent | None = None
    guardian: SimulatedGuardian | None = None
    engine: Engine | None = None
    engine_pid: int = 1 << 30
    order: GoalOrder = field(default_factory=GoalOrder)
    """goal.json."""
    report: Report | None = None
    """report.json."""
    disk_stalls: bool = False
    frozen: bool = False
    """A signal has stopped the agent."""
    paused: bool = False
    """The machine is paused; its network card is not."""
    wall_s: float = 0.0
    """How far the wall clock was set away from the monotonic one."""
    off: bool = False
    engines: list[Engine] = field(default_factory=list)
    """All that ever ran here."""
    gang: Any = None
    rank: int = 0
    folder: Path = Path("/nowhere")
    """The state directory, for production's lock verb."""
    staged: str = ""
    plan_id: str = ""
    request: dict[str, Any] = field(default_factory=dict)
    """What was staged last."""
    kept: list[tuple[dict[str, Any], Report]] = field(default_factory=list)
    """What was staged before, and how it ended."""
    ordered: str = ""
    """The run that a person has ended."""
    answers: Callable[[dict[str, Any]], dict[str, Any]] = lambda _: {"error": "connection refused"}
    """What an HTTP request that it makes is answered."""
    verbs: dict[str, Callable[..., None]] = field(default_factory=dict)
    """Verbs that it answers in a way of its own."""
    lost_files: bool = False
    """Its state directory was removed, and nothing was staged since."""
    started_at: float = 0.0
    holders: dict[str, str] = field(default_factory=dict)
    """By gang: the token of the last holder of its lock, as this node answered."""
    sockets: SimulatedSockets | None = None
    _next_round: float = float("inf")

    def arm(self, run: SimulatedRun) -> None:
        """Start an agent for a staged run."""
        self.run, self.order, self.frozen = run, GoalOrder(), False
        now, world = self.world.now, self.world
        vigil = AgentWatch(now, max(run.armed_for_s, run.lease_s), run.lease_s)
        self.guardian = SimulatedGuardian(self, vigil)
        self.sockets = SimulatedSockets(self.net, self.name, self.wake)
        disk = SimulatedDisk(self, stalls=self.disk_stalls)
        record = SimulatedRecord(run, disk)
        record.node = self
        tree = SimulatedTree(self, ranks=[Rank(tp_rank=rank, gpu=-1) for rank in run.tp_ranks])
        simulated: dict[str, Any] = {
            "guardian": self.guardian, "memory": NoMemory(), "tree": tree, "log": SimulatedLog(), "disk": disk,
        }  # fmt: skip
        self.agent = SimulatedAgent(run=run, record=record, sockets=self.sockets, now=lambda: world.now, **simulated)
        self.agent.node = self
        self.engine = None
        self.guardian.look()
        self.agent.flush()
        failures = self.agent.join_link()
        self.agent.checked(failures)
        self.wake()

    def start_engine(self) -> None:
        self.engine_pid += 1
        self.engine = Engine(self, self.run.run_id)
        self.engines.append(self.engine)
        self.engine.start()

    def everybody_loaded(self) -> bool:
        return all(
            node.engine is not None and node.engine.run_id == self.run.run_id and node.engine.ranks == node.ranks
            for node in [self, *self.fellows]
            if node.name in self.run.members
        )

    @property
    def agent_lives(self) -> bool:
        return self.agent is not None and not self.agent.gone

    @property
    def engine_lives(self) -> bool:
        return any(engine.lives for engine in self.engines)

    def lose_files(self) -> None:
        """Somebody removes its state directory; what runs goes on."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.report, self.request, self.kept, self.holders, self.lost_files = None, {}, [], {}, True

    def note_report(self, value: Report) -> None:
        if self.lost_files:
            return
        started_at = self.started_at or value.started_at
        self.report = replace(value, updated_at=self.world.now, started_at=started_at)

    def settle(self, *, clear: bool) -> None:
        """Like `stop` when nothing runs any more."""
        if self.report is not None and (clear or self.report.state is AgentState.STAGED):
            self.report = replace(self.report, state=AgentState.STOPPED)
        elif self.report is not None and not self.report.state.over:
            self.report = replace(self.report, state=AgentState.FAILED)

    # the loop

    def wake(self) -> None:
        """An event that the agent waits for has happened."""
        self._round_in(LATENCY * (0.5 + self.world.rng.random()))

    def _round_in(self, seconds: float) -> None:
        moment = self.world.now + seconds
        if moment < self._next_round:
            self._next_round = moment
            self.world.after(seconds, lambda: self._round(moment))

    def _round(self, moment: float) -> None:
        if moment != self._next_round:
            return  # another one came before it
        self._next_round = float("inf")
        agent = self.agent
        if agent is None or agent.gone or self.frozen or self.paused:
            return
        ready = {agent.guardian.channel.fileno()} if self._guardian_speaks() else set()
        agent.step(ready)
        if not agent.gone:
            self._round_in(agent.patience())

    def _guardian_speaks(self) -> bool:
        return self.guardian is not None and (bool(self.guardian.words) or not self.guardian.alive)

    # injected faults

    def kill_agent(self) -> None:
        if self.agent is None or self.agent.gone:
            return
        self.agent.gone = True
        if self.sockets is not None:
            self.sockets.close_all()
        if self.guardian is not None:
            self.guardian.say(b"")

    def kill_guardian(self) -> None:
        """The engine's parent dies with it (PR_SET_PDEATHSIG)."""
        if self.guardian is not None and self.guardian.alive:
            self.guardian.alive = False
            if self.engine is not None:
                self.engine.kill()
            self.wake()

    def kill_both(self) -> None:
        self.kill_guardian()
        self.kill_agent()

    def freeze(self, on: bool) -> None:
        self.frozen = on
        if not on:
            self.wake()

    def pause(self, on: bool) -> None:
        self.paused = on
        if not on:
            self.wake()

    def stall_disk(self, on: bool) -> None:
        self.disk_stalls = on
        if self.agent is not None and isinstance(self.agent.disk, SimulatedDisk):
            self.agent.disk.stalls = on
            if not on:
                self.agent.disk.catch_up()
