"""The node agent: one process that arms, starts, watches and ends one node's part of a gang.

A single loop waits for everything at once: the guardian, the engine's log, the ranks' pidfds, the leader link, NVML's
answers and the leader's HTTP probes. The controller's orders are a file (`goal.json`) and SIGUSR1. What to do about
each event is decided in lifecycle.py.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from orchestrator.node import files, others, processes, supervision
from orchestrator.node.agent import causes, clock, preflight
from orchestrator.node.agent.causes import WeighedCause
from orchestrator.node.agent.ending import end
from orchestrator.node.agent.engine_log import EngineLog
from orchestrator.node.agent.lifecycle import Effect, Event, Facts, Lifecycle, Note, PlainEffect, PlainEvent, Send
from orchestrator.node.agent.record import Disk, Now, Record
from orchestrator.node.agent.reserve import Reserve
from orchestrator.node.agent.sides import part_of
from orchestrator.node.agent.staged_run import Run, staged_in
from orchestrator.node.engine import devices, gpus, guardian, kernel_words, neighbours
from orchestrator.node.engine.gpus import GpuMemory
from orchestrator.node.engine.guardian import Guardian
from orchestrator.node.engine.hang_inquiry import GIVEN_UP_S, HangInquiry, HangQuestion
from orchestrator.node.engine.kernel_words import DeadProcess
from orchestrator.node.engine.logfile import LogFile, Redactor
from orchestrator.node.engine.ras import Inquiry
from orchestrator.node.engine.tree import SEARCH_EVERY_S, ProcessDeath, ProcessTree
from orchestrator.node.engine.vitality import HUNG, Probe, Vitality, with_engines_own
from orchestrator.node.engine.watch import LogWatch
from orchestrator.node.files import AGENT_FILE, ENGINE_LOG, GOAL_FILE
from orchestrator.node.look import kernel_log
from orchestrator.node.network import link, nccl_transport
from orchestrator.node.network.link import RETRY_S, Hub, Spoke
from orchestrator.node.network.nccl_transport import Rails
from orchestrator.node.network.wire import Sockets
from orchestrator.node.os_errors import NO_DESCRIPTORS
from orchestrator.node.supervision import UNKNOWN, Death
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.link import Digest, Gather, Pulse
from orchestrator.protocol.report import AgentState, ToldError
from orchestrator.protocol.run_files import AgentProcess, GoalOrder
from orchestrator.protocol.staging import ServiceOrder

if TYPE_CHECKING:
    from orchestrator.node.engine.service import CanaryResult, Service

TICK_S = 0.5
VERDICT_TICK_S = 0.05
ENDING_TICK_S = 0.05
PULSE_S = 1.0
DYING_S = 0.01
"""Between two checks of the ranks' main threads: the peers of a killed rank end 20 ms after it at the earliest, and we
need to know which was first. A check takes 3 microseconds per rank."""
MOST_HEARD = 3
"""Limit on a member's remarks that the leader's report repeats."""
MEMORY_EVERY_S = 2.0
BESIDE_EVERY_S = 10.0
MEMORY_WARMING_S = 0.5
"""Shorter while warming: the canary is short, and a gang must not become ready on old figures."""
TOLD_S = 0.5
"""The guardian reaps a process and reports its exit at once."""
RAILS_EVERY_S = 2.0
_WRONG_TEXT = (
    "wrong weights or kernels generate such text: check the checkpoint"
    " (`l40s-deploy checkpoint verify MODEL`) and the stack (`l40s-deploy doctor`)"
)
SIGNALLED_GOALS = {signal.SIGTERM: "stop", signal.SIGUSR2: "stop-now"}
"""Orders without a file: from systemd at a shutdown, and from a controller that can't write one."""


def run(arguments: Sequence[str]) -> int:
    """Role `agent` of the run in the folder that is its argument. Returns at its end."""
    asked = staged_in(arguments[0])
    this = AgentProcess(pid=os.getpid(), start=processes.start_of(os.getpid()))
    files.write_json(asked.path(AGENT_FILE), this.as_json())  # before it is shown: its files tell of it
    _shown = others.announce(asked.state, asked.gang, asked.node, asked.leader.port)
    agent = _begin(asked)
    try:
        agent.live()
    except Exception as defect:
        text = f"bug in the node agent: {type(defect).__name__}: {defect}"
        agent.happened(agent.lifecycle.because(time.monotonic(), text))
        agent.end_at_once()
        raise
    return 0


def _begin(run: Run) -> Agent:
    supervision.adopt_orphans()
    supervision.name_process("l40s-agent")
    parent = guardian.fork(run, partial(link.report_death, run))  # before any thread
    disk = Disk()
    memory = gpus.GpuMemory(run.gpus if run.device == "cuda" else ())
    record, vitality = Record(run, disk), Vitality(with_engines_own(run.watch.probe, run.env), run.network.notice_s)
    log = EngineLog(
        parent.log,
        LogFile(run.path(ENGINE_LOG), run.log_limit),
        LogWatch.of(run.watch),
        record,
        redactor=Redactor(run.hidden_words()),
        disk=disk,
        vitality=vitality,
        rails=Rails(run.network),
    )
    tree = ProcessTree(run, parent.pid, memory, disk)
    return Agent(run, parent, memory, record, tree, log, disk=disk, vitality=vitality, reserve=Reserve.full())


@dataclass
class Agent:
    """Holds the state of one node's part, turns what it sees into events of its life cycle, and applies the effects."""

    run: Run
    guardian: Guardian
    memory: GpuMemory
    record: Record
    tree: ProcessTree
    log: EngineLog
    disk: Now = field(default_factory=Now)
    reserve: Reserve = field(default_factory=Reserve)
    vitality: Vitality = field(default_factory=Vitality)
    """Of the engine's HTTP service (leader)."""
    ras: Inquiry = field(init=False)
    hang: HangInquiry = field(init=False)
    lifecycle: Lifecycle = field(init=False)
    sockets: Sockets = field(default_factory=Sockets)
    hub: Hub | None = None
    spoke: Spoke | None = None
    service: Service | None = None
    remarks: list[str] = field(default_factory=list)
    """Remarks of the node's own checks."""
    engine: tuple[int, int] = (0, 0)
    """Process id and start time of the engine's parent."""
    order: GoalOrder = field(default_factory=GoalOrder)
    """The controller's order, as last read."""
    signalled: str = ""
    """The order given by a signal."""
    gone: bool = False
    """The end is complete, and nothing is left to do."""
    now: Callable[[], float] = time.monotonic
    _wake: int = -1
    """Readable when a signal arrived."""
    _poke: int = -1
    """Writing here wakes the loop."""
    _pulsed: float = 0.0
    """When we last sent to the other agents; 0 sends at once."""
    _looked_at_rails: float = 0.0
    _looked_beside: float = -math.inf
    _beside: tuple[str, ...] = ()
    """Remarks on others' memory and on processors."""
    _least_free: int | None = None
    """Bytes that were free on the fullest GPU when it was fullest in this run."""
    _ready_at: float = 0.0
    """When the gang was ready, by the agent's clock."""
    _ending: Iterator[None] | None = None
    _dead: list[ProcessDeath] = field(default_factory=list)
    """Processes of the engine whose end may follow from their parent's."""
    _parents_death: Death = UNKNOWN
    _ending_at: float = math.inf
    """When the engine's parent was seen ending, by the agent's clock: later log lines do not explain its end."""

    def __post_init__(self) -> None:
        self.lifecycle = part_of(self.run, clock.EPOCH_S)
        self.ras = Inquiry(self.run.network.ras, self.run.addresses)
        self.hang = HangInquiry(self.run.folder)

    @property
    def state(self) -> AgentState:
        """State of this part."""
        return self.lifecycle.state

    def live(self) -> None:
        """Arm, then handle events until the run is over. Leaves no process behind that can be ended."""
        self._listen_to_signals()
        self.flush()
        no_link = self.join_link()  # before the checks: the others see that an agent will answer
        failures = [*preflight.check(self.run, self.memory), *no_link]
        self.checked(failures, [] if failures else preflight.remarks(self.run))
        while not self.gone:
            self.step(self._wait(self.patience()))

    def end_at_once(self) -> None:
        """End this part in any state: the loop itself is broken."""
        while not self.gone:
            self._end_on()
            self._wait(ENDING_TICK_S)

    def join_link(self) -> list[DeployError]:
        """Listen for the other agents, or begin to connect to the leader's agent."""
        if not self.run.leads:
            self.spoke = Spoke(self.run, self.run.link_key(), self.run.leader_name, self.sockets)
            self.follow_link(self.now())
            return []
        self.hub = Hub(self.run, self.run.link_key(), self.sockets)
        try:
            self.hub.listen()
        except DeployError as failure:
            return [failure]
        return []

    def checked(self, failures: Sequence[DeployError], remarks: Sequence[str] = ()) -> None:
        """Take the results of the node's own checks."""
        if failures:
            self.record.set(refusals=tuple(map(ToldError.of, failures)))
            first = failures[0]
            self.happened(self.lifecycle.because(self.now(), f"{first.where}: {first.what}", fix=first.fix))
            return
        self.remarks = list(remarks)
        self.record.set(checked=True)
        self.record.event("checked")
        self.happened(PlainEvent.CHECKS_PASSED)

    def patience(self) -> float:
        """How long the loop may wait for an event."""
        if self.state.unwanted:
            return ENDING_TICK_S
        if not self.state.runs:
            return RETRY_S if self.spoke is not None and not self.spoke.joined else TICK_S
        tick = TICK_S if self.tree.complete else SEARCH_EVERY_S
        return VERDICT_TICK_S if self.lifecycle.until else tick

    def step(self, ready: set[int]) -> None:
        """One round of the loop; once more with the reserve where this process may open nothing more.

        ready: descriptors that are ready for I/O
        """
        try:
            self._step(ready)
        except OSError as wrong:
            if wrong.errno not in NO_DESCRIPTORS:
                raise
            with self.reserve.lent():
                self._step(ready)

    def _step(self, ready: set[int]) -> None:
        if self.state.unwanted:
            self._end_on()
            return
        now = self.now()
        self._obey_order()
        self.log.read()
        if self.tree.parents_end and self._ending_at == math.inf:
            self._ending_at = clock.now()  # what it wrote has been read
        self._follow_guardian(ready)
        self._follow_ranks(ready)
        if self.tree.compilers and self.state.runs:  # kernels that are compiled for half an hour are no hang
            self.log.watch.compiles(clock.now())
            self.vitality.compiled(now)
        self._follow_memory(now)
        self._follow_rails(now)
        self._follow_gathering(now)
        self.follow_link(now)
        self.happened(PlainEvent.TICK)
        self._follow_service()
        self.pulse(now)
        self.flush()

    def happened(self, event: Event) -> None:
        """Pass an event to the life cycle, and carry out its effects."""
        for effect in self.lifecycle.step(self.now(), event, self._facts()):
            self._carry_out(effect)

    def follow_link(self, now: float) -> None:
        """Read the messages of the leader link."""
        link = self.hub or self.spoke
        for event in link.step(now) if link is not None else ():
            self.happened(event)

    def pulse(self, now: float) -> None:
        """Send our state to the other agents, every second and at every change."""
        if now - self._pulsed < PULSE_S:
            return
        self._pulsed = now
        self.guardian.beat()
        if self.hub is not None:
            self.hub.send(Pulse(state=self.state))
        if self.spoke is not None:
            self.spoke.send(self._digest())

    def flush(self, *, force: bool = False) -> None:
        """Write the report if it has changed."""
        now, members = self.now(), self.lifecycle.members
        self.record.set(
            state=self.state,
            phase=self.log.watch.phase,
            engine_pid=self.engine[0],
            ranks=tuple(rank.report() for rank in self.tree.ranks),
            remarks=tuple(self._remarks()),
            proved=tuple(self.log.watch.proved),
            cause=self.lifecycle.cause,
            verdict=self.lifecycle.verdict,
            silent=members.silent(now),
            links=members.links(now),
        )
        self.record.flush(force=force)

    def enter(self, state: AgentState) -> None:
        """Change the state, and tell the other agents and the report at once."""
        if state is AgentState.READY:
            self._ready_at = clock.now()
            self.log.watch.finish(clock.now())  # a worker's log does not say that the engine is ready
            self.disk.put(partial(nccl_transport.note, self.run))
        self.record.event("state", state=state.value)
        self._pulsed = 0.0
        self.flush()

    # the loop itself

    def _wait(self, timeout_s: float) -> set[int]:
        """Wait for an event, or at most this long; returns the descriptors that are ready. A rank's death, which no
        descriptor shows in time, is an event too."""
        poll, until = _poll(self._descriptors()), time.monotonic() + timeout_s
        while True:
            left = until - time.monotonic()
            pause = min(left, DYING_S) if self.tree.watched else left
            ready = {descriptor for descriptor, _ in poll.poll(max(0.0, pause * 1000))}
            if ready or time.monotonic() >= until or self.tree.some_die():
                break
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
        return ready

    def _descriptors(self) -> Iterator[tuple[int, int]]:
        service = self.service.wake if self.service is not None else -1
        for descriptor in (self._wake, self.guardian.channel.fileno(), self.log.pipe, service, self.memory.fileno()):
            if descriptor >= 0:
                yield descriptor, select.POLLIN
        yield from self.tree.descriptors()
        link = self.hub or self.spoke
        if link is not None:
            yield from link.descriptors()

    def _end_on(self) -> None:
        """Do the next stage of the end, once its condition is true."""
        if self._ending is None:
            self._ending = end(self)
        for _ in self._ending:
            return
        self.gone = True

    def _listen_to_signals(self) -> None:
        self._wake, self._poke = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        for number, goal in SIGNALLED_GOALS.items():
            signal.signal(number, partial(self._take_order, goal))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.set_wakeup_fd(self._poke, warn_on_full_buffer=False)

    def _take_order(self, goal: str, *_: object) -> None:
        self.signalled = goal

    # what the agent sees

    def _facts(self) -> Facts:
        living = self.state is not AgentState.DRAINING or bool(self.tree.living())
        link = (spoke.reached, spoke.refused, spoke.trouble, spoke.misfit) if (spoke := self.spoke) is not None else ()
        return Facts(self.tree.complete, living, *link)

    def _obey_order(self) -> None:
        self.disk.put(self._read_order, replacing="goal")
        order = GoalOrder(goal=self.signalled) if self.signalled else self.order
        if order.goal:
            self.happened(order)

    def _read_order(self) -> None:
        order = files.read_as(GoalOrder, self.run.path(GOAL_FILE)) or GoalOrder()
        if order != self.order:
            self.order = order
            with contextlib.suppress(OSError):
                os.write(self._poke, b".")

    def _follow_guardian(self, ready: set[int]) -> None:
        if self.guardian.channel.fileno() not in ready:
            return
        messages = self.guardian.messages()
        if messages is None:
            self.guardian.channel.close()
            how = Death.of_child(supervision.exit_code(self.guardian.pid, TOLD_S))
            self.happened(causes.guardian_ended(self.run.node, self.guardian.pid, how, clock.now()))
            return
        for message in messages:
            if "started" in message:
                self.engine = (int(message["started"]), int(message["start"]))
                self.record.event("engine started", pid=self.engine[0])
                self.happened(PlainEvent.ENGINE_STARTED)
            elif message.get("exited") == self.engine[0]:
                self.happened(PlainEvent.ENGINE_GONE)
                self._engine_ended(Death.of(int(message["status"])))

    def _engine_ended(self, death: Death) -> None:
        self.record.event("engine ended", how=death.words())
        self._parents_death, run = death, self.run
        if self.state.runs:
            self._read_last_words()
            self._reap(_ready(self.tree.descriptors()))
            self._tell_of_the_first()
            at = min(self._ending_at, clock.now())
            seen = causes.engine_ended(run.node, death, self.log.watch, at, run.addresses, leads=run.leads)
            self.happened(self._explained(seen, self.engine[0], -1, death))

    def _read_last_words(self) -> None:
        self.log.read_last_words(lambda: self.pulse(self.now()))

    def _follow_ranks(self, ready: set[int]) -> None:
        if not self.engine[0]:
            return
        self._reap(ready)
        self._tell_of([died for died in self._dead if died.follows is False])
        if self._dead:
            self._hear_of_parent()
        if self._dead and self.lifecycle.engine_runs and (launcher := self.tree.dying_launcher()) is not None:
            self._engine_ended(launcher)  # its own end takes longer than that of the processes below it
        self._tell_of_the_first()

    def _reap(self, ready: set[int]) -> None:
        for died in self.tree.step(self.now(), ready):
            self.record.event("process ended", tp_rank=died.part.number, pid=died.part.pid, how=died.death.words())
            self._dead.append(died)

    def _hear_of_parent(self) -> None:
        """A process may be reported dead after those that its death has killed."""
        until = time.monotonic() + TOLD_S
        while self.state.runs and self.lifecycle.engine_runs and (left := until - time.monotonic()) > 0:
            self._follow_guardian(_ready([(self.guardian.channel.fileno(), select.POLLIN)], left))

    def _tell_of_the_first(self) -> None:
        """Of the dead whose parent died too, tell of those whose end its end does not explain."""
        dead, self._dead = self._dead, []
        now = clock.now()
        self._tell_of([died for died in dead if not causes.follows(died, self._parents_death, self.log.watch, now)])

    def _tell_of(self, first: Sequence[ProcessDeath]) -> None:
        self._dead = [died for died in self._dead if died not in first]
        for died in first:
            if self.state.runs:
                self._read_last_words()
                seen = causes.rank_died(self.run.node, died, self.log.watch, clock.now(), self.run.addresses)
                self.happened(self._explained(seen, died.part.pid, died.part.gpu, died.death))

    def _explained(self, seen: WeighedCause, pid: int, gpu: int, death: Death) -> WeighedCause:
        """Add what the kernel and the devices show about the death. gpu: -1 for a process that uses none."""
        place = self.memory.places.get(gpu, "")
        around, explained = devices.look(place, self.run.network), causes.explains_itself(seen.cause)
        dead = DeadProcess(pid, gpu, place, around, signal=death.signal, explained=explained)
        try:
            records: list[str] | None = kernel_log.records()
        except OSError:  # not readable for us, or not present
            records = None
        word = kernel_words.reason(records or (), time.monotonic(), dead)
        word = word or devices.word(dead, log_unread=records is None)
        return seen if word is None else causes.explained(seen, word)

    def _follow_memory(self, now: float) -> None:
        if self.run.device != "cuda" or not self.run.gpus:
            return
        if self.memory.take(now):
            self.tree.note_memory()
            self._note_least_free()
            self._note_neighbours(now)
        every = MEMORY_WARMING_S if self.state is AgentState.WARMING else MEMORY_EVERY_S
        if self.engine[0] and now - self.memory.answered_at >= every:
            self.memory.ask(now)

    def _note_neighbours(self, now: float) -> None:
        """Of a gang that serves, from time to time: while it starts, its processes come and go."""
        if self.state is not AgentState.READY or now - self._looked_beside < BESIDE_EVERY_S:
            return
        self._looked_beside = now
        ours, uses = self.tree.ever, (self.memory.answer or {}).values()
        unbound = neighbours.unbound(self.tree.ranks, self.memory.places)
        self._beside = (*neighbours.strangers(tuple(uses), ours), *unbound)

    def _note_least_free(self) -> None:
        """While the engine loads and serves: at its end memory is given back, and another one may come."""
        free = self.memory.least_free()
        if free is None or not self.engine[0] or not self.state.runs:
            return
        if self._least_free is None or free < self._least_free:
            self._least_free = free
            self.record.set(least_free_bytes=free)

    def _follow_rails(self, now: float) -> None:
        """If a port fails, NCCL continues on the other port of the card; only its log shows that."""
        rails = self.log.rails
        if not rails.moved or now - self._looked_at_rails < RAILS_EVERY_S:
            return
        self._looked_at_rails = now
        if rails.look(clock.now()):
            self.record.event("rails", gone=[rail.port for rail in rails.gone if not rail.up])
        self.record.set(rails=rails.gone, moved=rails.moved)

    def _follow_service(self) -> None:
        for result in self.service.take() if self.service is not None else ():
            if isinstance(result, Probe):
                self._judge_probe(result)
            else:
                self._judge_canary(result)

    def _judge_probe(self, probe: Probe) -> None:
        taken_s = round(probe.ended - probe.began, 4)
        self.record.set(service_healthy=probe.answered, service_checked_at=probe.at, service_latency_s=taken_s)
        if probe.answered:
            self.happened(PlainEvent.SERVICE_HEALTHY)
        if self.state is not AgentState.READY:
            return
        changed = self.vitality.probed(probe)
        if changed:
            self.record.event("service", word=self.vitality.word, detail=self.vitality.detail)
        self.ras.follow(self.now(), still=self.vitality.still and self.run.device == "cuda")
        ras, sure, trouble = self.ras.verdict, self.vitality.word == HUNG, None
        if sure or (self.vitality.still and ras is not None and ras.culprit is not None):
            seen = self.lifecycle.because(self.now(), self.vitality.detail, lines=self.memory.waiting())
            trouble = causes.hung(seen, self.run.gang, ras, self.run.addresses, sure=sure)
        self.record.set(service_state=self.vitality.word, service_detail=self.vitality.detail, trouble=trouble)
        if sure and self.hang.due(self.now(), first=changed):
            self._gather(again=not changed)
            if self.hub is not None:
                self.hub.send(Gather(again=not changed))

    def _gather(self, *, again: bool) -> None:
        """Look at the ranks while they stand: a guard waits for that, and not longer than it says here."""
        ranks = tuple((rank.tp_rank, rank.pid) for rank in self.tree.ranks if rank.lives)
        if self.hang.start(self.now(), HangQuestion(ranks, self.engine[0], self._ready_at), again=again):
            self.tree.looker = self.hang.pid
            self.record.event("gathering", again=again)
            self.record.set(looks_until=clock.now() + GIVEN_UP_S)

    def _follow_gathering(self, now: float) -> None:
        if self.hang.ended(now):
            self.tree.looker = 0
            self.record.set(looks_until=0.0)
            self.record.event("gathered", moved=self.hang.moved)

    def _judge_canary(self, result: CanaryResult) -> None:
        self.record.set(canary_text=result.text)
        if not result.refused:
            self.happened(PlainEvent.CANARY_ACCEPTED)
        elif self.state.runs:
            text, lines = f"the canary generation was refused: {result.refused}", self.log.watch.last_lines()
            self.happened(self.lifecycle.because(self.now(), text, fix=_WRONG_TEXT, lines=lines))

    # what the agent does

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case AgentState():
                self.enter(effect)
            case Send(message, only):
                if self.hub is not None:
                    self.hub.send(message, only=only)
                if self.spoke is not None:
                    self.spoke.send(message)
            case PlainEffect.START_ENGINE:
                self._start_engine()
            case PlainEffect.ASK_ENGINE_TO_END:
                number = getattr(signal, f"SIG{self.run.watch.stop.leader_signal}", signal.SIGTERM)
                self.tree.signal_parent(self.engine, number)
            case PlainEffect.LOOK:
                self._read_last_words()
                self._follow_ranks(_ready(self.tree.descriptors()))
                self.happened(PlainEvent.LOOK_DONE)
            case PlainEffect.GATHER | PlainEffect.GATHER_AGAIN:
                self._gather(again=effect is PlainEffect.GATHER_AGAIN)
            case Note(what, details):
                self.record.event(what, **details)

    def _start_engine(self) -> None:
        self.guardian.go()
        self.log.watch.begin(clock.now())
        if self.run.service:
            self.service = self._service(self.run.service)
            self.service.start()

    def _service(self, order: ServiceOrder) -> Service:
        from orchestrator.node.engine.service import Service  # an eighth of an agent's start; only the leader needs it

        return Service(
            order.url,
            self.run.watch.http,
            self.run.canary,
            self.run.model,
            patience=self.vitality.patience,
            authorization=self.run.authorization(),
            certificate=self.run.secret_file(order.certificate),
            counters=self.run.watch.probe.counters,
        )

    # what the agent tells the others

    def _digest(self) -> Digest:
        return Digest(
            state=self.state,
            phase=self.log.watch.phase,
            complete=self.tree.complete,
            disk=tuple(self.disk.remarks()),
            at=clock.now(),
        )

    def _remarks(self) -> Iterator[str]:
        """What the checks, the log, the processes (ranks have states of their own) and the disk give to remark; and
        members whose disks stall, so that their own reports may not show it."""
        yield from (*self.remarks, *self.log.remarks, *self._beside)
        for pid, title in self.tree.stopped.items():
            parent = pid == self.engine[0]
            name = f"the engine's parent process (pid {pid})" if parent else f"process {pid} ({title})"
            yield f"{name} was stopped by a signal"
        if self.tree.compilers:
            yield f"the engine compiles kernels ({', '.join(self.tree.compilers)} run below it)"
        yield from self.disk.remarks()
        yield from self.reserve.remarks()
        for node, digest in self.lifecycle.digests.items():
            yield from (f"{node}: {words}" for words in digest.disk[:MOST_HEARD])
        yield from self.log.watch.unproved if self.state is AgentState.READY else ()


def _poll(descriptors: Iterable[tuple[int, int]]) -> select.poll:
    poll = select.poll()
    for descriptor, mask in descriptors:
        poll.register(descriptor, mask)
    return poll


def _ready(descriptors: Iterable[tuple[int, int]], within_s: float = 0.0) -> set[int]:
    return {descriptor for descriptor, _ in _poll(descriptors).poll(within_s * 1000)}
