"""The node agent: one process that arms, starts, watches and ends one node's part of a gang.

A single loop waits for everything at once: the guardian, the engine's log, the ranks' pidfds, the leader link,
NVML's answers and the leader's HTTP probes. Orders of the controller are a file (`goal.json`) and SIGUSR1.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from orchestrator.node import files, itself, kernel, processes
from orchestrator.node.agent import causes, clock, preflight, verdicts
from orchestrator.node.agent.disk import Disk
from orchestrator.node.agent.ending import end
from orchestrator.node.agent.part import TICK_S, Part
from orchestrator.node.agent.record import Record
from orchestrator.node.agent.run import AGENT_FILE, ENGINE_LOG, GOAL_FILE, Run, staged_in
from orchestrator.node.agent.statements import Statement
from orchestrator.node.agent.verdicts import Inquest, Witness
from orchestrator.node.engine import gpus, guardian, kernel_words
from orchestrator.node.engine.deaths import Death
from orchestrator.node.engine.kernel_words import KernelWord
from orchestrator.node.engine.logfile import LogFile
from orchestrator.node.engine.redact import Redactor
from orchestrator.node.engine.service import CanaryResult, Health, Service
from orchestrator.node.engine.tree import SEARCH_EVERY_S, Rank, Tree
from orchestrator.node.engine.vitality import HUNG, Patience, Vitality
from orchestrator.node.engine.watch import LogWatch
from orchestrator.node.failure import Failure
from orchestrator.node.look import kernel_log
from orchestrator.node.network import obituary
from orchestrator.node.network.broken import RECONNECT_S, BrokenLinks
from orchestrator.node.network.link import Hub, Joined, Left, Said, Spoke
from orchestrator.protocol.link import (
    ONE_RELEASE,
    Account,
    AgentEnded,
    Ask,
    Digest,
    Drain,
    End,
    Ended,
    Go,
    Pulse,
    Stop,
    from_leader,
    from_member,
)
from orchestrator.protocol.report import AgentState, Cause, Refusal
from orchestrator.protocol.run_files import AgentProcess, Order
from orchestrator.protocol.verbs import Because

MOST_HEARD = 3
"""Remarks of a member that the leader's report repeats."""
SILENT_S = 10.0
"""A node that was not heard for this long is shown as silent; with a short lease after half of it."""
QUIET_S = 2.0
"""Two words missed: `status` does not say of such a node that its agent is heard."""
LINK_S = 30.0
"""A node that has not reached the leader's agent this long after its own checks is not armed."""
LEADERS_CHECKS_S = 90.0
"""One that has reached its port waits this long for a word: the leader's checks may still go on, and `up` waits as long
for them (ARM_S in workflows/deadlines.py)."""
MEMORY_EVERY_S = 2.0
MEMORY_WARMING_S = 0.5
"""A canary is short, and ready without the newest figures would be half a truth."""
FOLLOW_LEADER_S = 1.5
"""After the leader's engine has gone, this long for the workers' own shutdown before SIGKILL: every rank was told to
end before the leader's own ended (sglang 0.5: ShutdownReq), or none is ever told (0.4.4): a long wait gains nothing."""

SIGNALLED_GOALS = {signal.SIGTERM: "stop", signal.SIGUSR2: "stop-now"}
"""Orders that need no file: from systemd at a shutdown, and from a controller where none can be written."""

ITS_OWN_DEATHS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGTERM)
"""Signals that the engine's parent does not die of because a rank has (then it exits, or kills itself: SIGKILL)."""
INQUEST_TICK_S = 0.05
TOLD_S = 0.5
"""The guardian reaps at once and says so."""

RUNNING = (AgentState.STARTING, AgentState.WARMING, AgentState.READY)
OVER = (AgentState.STOPPING, AgentState.STOPPED, AgentState.FAILED)
ENDING = (AgentState.DRAINING, AgentState.STOPPING, AgentState.STOPPED, AgentState.FAILED)


def run(arguments: Sequence[str]) -> int:
    """Role `agent`: the run's folder is the only argument. Ends with the run."""
    folder = arguments[0]
    agent = _begin(staged_in(folder))
    try:
        agent.live()
    except Exception as defect:
        agent.fail(agent.because(f"defect in the agent: {type(defect).__name__}: {defect}"))
        end(agent)
        raise
    return 0


def _begin(run: Run) -> Agent:
    kernel.adopt_orphans()
    kernel.name_process("l40s-agent")
    files.write_json(
        run.path(AGENT_FILE),
        AgentProcess(pid=os.getpid(), start=processes.start_of(os.getpid()), run_id=run.run_id).as_json(),
    )
    parent = guardian.fork(run, partial(obituary.report, run))  # before any thread
    disk = Disk()
    memory = gpus.GpuMemory(itself.application(), run.gpus if run.device == "cuda" else ())
    return Agent(
        run=run,
        guardian=parent,
        memory=memory,
        record=Record(run, disk),
        disk=disk,
        watch=LogWatch.of(run.watch),
        tree=Tree(run, parent.pid, memory, disk),
        log=LogFile(run.path(ENGINE_LOG), run.log_limit),
        redactor=Redactor(run.hidden_words()),
        vitality=Vitality(Patience.of(run.watch.probe, run.env)),
    )


@dataclass
class Agent(Part):
    """A part that decides: what follows from each thing that happens."""

    inquest: Inquest | Witness = field(init=False)
    """Who is named as the cause."""
    engine_runs: bool = False
    accepted: bool = False
    """The canary generation was accepted (leader)."""
    broken: BrokenLinks = field(default_factory=BrokenLinks)
    digests: dict[str, Digest] = field(default_factory=dict)
    """What each member said last (leader)."""
    order: Order = field(default_factory=Order)
    """What the controller wants, as it was read last."""
    poke: int = -1
    """What is written here wakes the loop."""
    signalled: str = ""
    """What a signal asked for."""
    _began: float = field(default_factory=time.monotonic)
    """When the node's own checks had ended, monotonic seconds."""
    _deadline: float = 0.0
    """When a drain has taken long enough, monotonic seconds."""

    def __post_init__(self) -> None:
        self.inquest = Inquest(self.run.node) if self.run.leads else Witness(self.run.node)

    def live(self) -> None:
        """Arm, then follow events until the run is over; leaves nothing behind that can be ended."""
        self._listen_to_signals()
        self.flush()
        if self._arm():
            while self.state not in OVER:
                self._step()
        end(self)

    def _arm(self) -> bool:
        no_link = self._join_link()  # before the checks: the others see that somebody will answer
        refusals = [*preflight.check(self.run, self.memory), *no_link]
        self._began = time.monotonic()
        if not refusals:
            self.remarks = preflight.remarks(self.run)
            self.record.set(checked=True)
            self.record.event("checked")
            return True
        self.record.set(refusals=tuple(Refusal(**failure.as_json()) for failure in refusals))
        first = refusals[0]
        self.fail(self.because(f"{first.where}: {first.what}", fix=first.fix))
        return False

    def _join_link(self) -> list[Failure]:
        if not self.run.leads:
            leader = self.run.members[0] if self.run.members else "the leader"
            self.spoke = Spoke(self.run, self.run.link_key(), leader)
            return []
        self.hub = Hub(self.run, self.run.link_key())
        try:
            self.hub.listen()
        except Failure as failure:
            return [failure]
        return []

    def _step(self) -> None:
        ready = self.wait(self._patience())
        now = time.monotonic()
        self._obey_goal()
        self.read_log()
        self._follow_guardian(ready)
        self._follow_ranks(now, ready)
        self._follow_memory(now)
        self._follow_link(now)
        self._judge(verdicts.Tick())
        self._follow_service()
        self._advance(now)
        self.pulse(now)
        self.flush()

    def _listen_to_signals(self) -> None:
        self.wake, self.poke = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        for number, goal in SIGNALLED_GOALS.items():
            signal.signal(number, partial(self._take_order, goal))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.set_wakeup_fd(self.poke, warn_on_full_buffer=False)

    def _take_order(self, goal: str, *_: object) -> None:
        self.signalled = goal

    def _obey_goal(self) -> None:
        self.disk.put(self._read_goal, replacing="goal")
        order = self.order
        goal = self.signalled or order.goal
        if goal == "run":
            self._start()
        elif goal == "stop":
            self._stop()
        elif goal == "stop-now":
            self._end_because(order.because)

    def _read_goal(self) -> None:
        order = files.read_as(Order, self.run.path(GOAL_FILE)) or Order()
        if order != self.order:
            self.order = order
            if self.poke >= 0:
                with contextlib.suppress(OSError):
                    os.write(self.poke, b".")

    def _end_because(self, failure: Because | None) -> None:
        """Told to end at once, for a failure that the controller saw and no agent could, or for none."""
        if failure is not None and self.state not in ENDING:
            self.fail(causes.told(failure, clock.now()))
        else:
            self._stop_now()

    def _follow_guardian(self, ready: set[int]) -> None:
        if self.guardian.channel.fileno() not in ready:
            return
        messages = self.guardian.messages()
        if messages is None:
            self.guardian.channel.close()
            self.fail(self.because("the engine's guardian process was killed"))
            return
        for message in messages:
            if "started" in message:
                self.engine = (int(message["started"]), int(message["start"]))
                self.engine_runs = True
                self.record.event("engine started", pid=self.engine[0])
            elif message.get("exited") == self.engine[0]:
                self.engine_runs = False
                self._engine_ended(Death.of(int(message["status"])))

    def _engine_ended(self, death: Death) -> None:
        self.record.event("engine ended", how=death.words())
        if self.state in RUNNING:
            if death.signal not in ITS_OWN_DEATHS:
                self._bury_the_dead()
            self.read_last_words()
            seen = causes.engine_ended(self.run.node, death, self.watch, clock.now(), self.run.addresses)
            self._judge(verdicts.Happened(seen))

    def _judge(self, event: verdicts.Event) -> None:
        """Something that may say who failed first: ask, look, report, rule."""
        if self.state in ENDING:
            return
        for effect in self.inquest.step(time.monotonic(), event, self._connected()):
            self._carry_out(effect)

    def _carry_out(self, effect: verdicts.Effect) -> None:
        match effect:
            case verdicts.Ask() if self.hub is not None:
                self.hub.send(Ask())
            case verdicts.Look():
                self._look_at_ranks()
                self._judge(verdicts.Looked())
            case verdicts.Tell(statement) if self.spoke is not None:
                self.spoke.send(statement.account() if statement is not None else Account())
            case verdicts.Fail(cause):
                self.fail(cause, tell=False)
            case verdicts.Rule(verdict, cause):
                self.verdict = verdict
                self.fail(cause)
            case _:
                pass

    def _connected(self) -> frozenset[str]:
        if self.hub is not None:
            return self.hub.joined
        return frozenset({self.spoke.leader}) if self.spoke is not None and self.spoke.joined else frozenset()

    def _look_at_ranks(self) -> None:
        """What the log and the ranks' states say now."""
        self.read_last_words()
        self._bury_the_dead()

    def _patience(self) -> float:
        """How long the loop may wait for something to happen."""
        if self.state not in RUNNING:
            return TICK_S
        tick = TICK_S if self.tree.complete else SEARCH_EVERY_S
        return INQUEST_TICK_S if self.inquest.until else tick

    def _hear_of_parent(self) -> None:
        """A parent's death takes its ranks with it (SIGKILL, by PR_SET_PDEATHSIG), and may be told after theirs."""
        poll = select.poll()
        poll.register(self.guardian.channel.fileno(), select.POLLIN)
        poll.poll(TOLD_S * 1000)
        self._follow_guardian({self.guardian.channel.fileno()})

    def _bury_the_dead(self) -> None:
        """Ranks that ended just before their parent: one of them may be the reason."""
        poll = select.poll()
        for descriptor, mask in self.tree.descriptors():
            poll.register(descriptor, mask)
        self._follow_ranks(time.monotonic(), {descriptor for descriptor, _ in poll.poll(0)})

    def _follow_ranks(self, now: float, ready: set[int]) -> None:
        if not self.engine[0]:
            return
        for died in self.tree.step(now, ready):
            self.record.event("rank ended", tp_rank=died.rank.tp_rank, pid=died.rank.pid, how=died.death.words())
            killed = died.death.signal in (None, signal.SIGKILL)
            if self.state in RUNNING and killed and self.engine_runs and not processes.alive(*self.engine):
                self._hear_of_parent()
            if self.state in RUNNING:
                self.read_last_words()
                seen = causes.rank_died(self.run.node, died, self.watch, clock.now(), self.run.addresses)
                word = self._kernels_word(died.rank)
                self._judge(verdicts.Happened(seen if word is None else causes.explained(seen, word)))

    def _kernels_word(self, rank: Rank) -> KernelWord | None:
        try:
            records = kernel_log.records()
        except OSError:  # not for us to read, or none here
            return None
        place = self.memory.places.get(rank.gpu, "")
        return kernel_words.of_rank(records, time.monotonic(), pid=rank.pid, gpu=rank.gpu, place=place)

    def _follow_memory(self, now: float) -> None:
        if self.run.device != "cuda" or not self.run.gpus:
            return
        if self.memory.take(now):
            self.tree.note_memory()
        every = MEMORY_WARMING_S if self.state == "warming" else MEMORY_EVERY_S
        if self.engine[0] and now - self.memory.answered_at >= every:
            self.memory.ask(now)

    def _follow_link(self, now: float) -> None:
        for event in self.link_events(now):
            if isinstance(event, Joined):
                self._joined(event.node)
            elif isinstance(event, Left):
                self._left(event)
            elif self.hub is not None:
                self._hear_member(event)
            else:
                self._hear_leader(event.message)
        for node, reason in self.broken.overdue(now):
            self._judge_broken(node, reason)
        self._judge_silence(now)

    def _joined(self, node: str) -> None:
        """For the first time or again: then it may have missed what was said meanwhile."""
        self.record.event("joined", node=node)
        self.ended.discard(node)
        self.broken.back(node)
        if self.hub is not None and self.state in RUNNING:
            self.hub.send(Go(), only=node)
        elif self.hub is not None and self.state is AgentState.DRAINING:
            self.hub.send(Drain(), only=node)

    def _left(self, event: Left) -> None:
        self.record.event("left", node=event.node, reason=event.reason)
        self._judge(verdicts.Gone(event.node))
        if event.broken and event.node not in self.ended:  # whoever has ended has said so, and why
            self.broken.broke(event.node, event.reason, time.monotonic())  # what the network has lost has its lease

    def _judge_broken(self, node: str, reason: str) -> None:
        """A connection was not made again in time."""
        if node in self.ended:
            return
        if self.spoke is not None and not self.spoke.refused:
            return  # somebody may listen there, or nothing comes through: its lease decides
        again = "every new one was refused" if self.spoke is not None else "no new one came"
        text = f"the connection to the agent on {node} ended ({reason}), and {again} for {RECONNECT_S:g} s"
        self._agent_ended(node, text)

    def _agent_ended(self, node: str, text: str) -> None:
        self.ended.add(node)
        if self.state is AgentState.DRAINING and self.spoke is not None:
            self._stop_now()  # nobody is left to say when the leader's engine has gone
        elif self.state not in ENDING:
            fix = f"check {node}: was it rebooted, or the agent killed?"
            self.fail(Cause(node=node, text=text, at=clock.now(), fix=fix))

    def _guardian_reported(self, node: str) -> None:
        self._agent_ended(node, f"the agent on {node} ended, as its guardian reports, and its engine with it")

    def _hear_member(self, said: Said) -> None:
        match from_member(said.message):
            case Digest() as digest:
                self.digests[said.node] = digest
            case Account() as account:
                self._judge(verdicts.Heard(said.node, Statement.of(account)))
            case Ended():
                self.ended.add(said.node)
            case AgentEnded():
                self._guardian_reported(said.node)
            case Stop(now=now):
                self._stop_now() if now else self._stop()
            case _:
                pass

    def _hear_leader(self, raw: dict[str, Any]) -> None:
        match from_leader(raw):
            case Go():
                self._start()
            case Pulse(state=state):
                self._follow_leaders_state(state)
            case Ask():
                self._judge(verdicts.Asked())
            case Drain():
                self._drain()
            case End() as end_of_all:
                self._end_with_leader(end_of_all)
            case AgentEnded() if self.spoke is not None:
                self._guardian_reported(self.spoke.leader)
            case _:
                pass

    def _follow_leaders_state(self, state: AgentState) -> None:
        if self.state in (AgentState.STARTING, AgentState.WARMING) and state is AgentState.READY and self.tree.complete:
            self.become(AgentState.READY)
        elif self.state is AgentState.STARTING and state is AgentState.WARMING and self.tree.complete:
            self.become(AgentState.WARMING)

    def _end_with_leader(self, message: End) -> None:
        if message.verdict is not None:
            self.verdict = message.verdict
            self._judge(verdicts.Ruled(message.verdict))
        elif message.now:
            self.become(AgentState.STOPPING)
        elif self.state not in OVER:
            self.become(AgentState.DRAINING)
            self._deadline = time.monotonic() + min(self.run.watch.stop.shutdown_s, FOLLOW_LEADER_S)

    def _heard_remarks(self) -> list[str]:
        return [f"{node}: {words}" for node, digest in self.digests.items() for words in digest.disk[:MOST_HEARD]]

    def _judge_silence(self, now: float) -> None:
        silences = self._silences(now)
        shown_after = min(SILENT_S, self.run.lease_s / 2)
        silent = sorted(node for node, silence in silences.items() if silence > shown_after)
        quiet = [node for node, silence in silences.items() if silence > QUIET_S]
        links = {node: self._link_word(node, silent, quiet) for node in self._partners()}
        self.record.set(silent=tuple(silent), links=links)
        expired = {node: silence for node, silence in silences.items() if silence > self.run.lease_s}
        if expired and len(silences) > 1 and len(silent) == len(silences) and self.state not in ENDING:
            self._cut_off(max(expired.values()))
        for node, silence in expired.items():
            if self.state not in ENDING:
                text = f"no word from {node} for {silence:.0f} s: its lease of {self.run.lease_s:.0f} s ran out"
                fix = f"look at {node} and at the network between it and {self.run.node}"
                self.fail(Cause(node=node, text=text, at=clock.now(), fix=fix))

    def _cut_off(self, silence: float) -> None:
        """Everybody else fell silent: that is one end of a network, and it is ours."""
        node = self.run.node
        text = (
            f"no word from any other node for {silence:.0f} s: {node} is cut off, its lease of {self.run.lease_s:.0f} s"
        )
        fix = f"look at {node}'s own link and firewall"
        self.fail(self.because(f"{text} ran out", fix=fix))

    def _silences(self, now: float) -> dict[str, float]:
        if self.hub is not None:
            return {node: now - heard for node, heard in self.hub.heard.items() if node not in self.ended}
        if self.spoke is not None and self.spoke.heard_at:
            return {self.spoke.leader: now - self.spoke.heard_at}
        return {}

    def _partners(self) -> tuple[str, ...]:
        """Whom we hold a connection to: the leader holds one to every other node."""
        if self.spoke is not None:
            return (self.spoke.leader,)
        return self.run.members[1:]

    def _link_word(self, node: str, silent: Sequence[str], quiet: Sequence[str]) -> str:
        if node in self.ended:
            return "ended"
        if node in silent:
            return "silent"
        joined = node in self.hub.joined if self.hub is not None else self.spoke is not None and self.spoke.joined
        if joined and node in quiet:
            return "quiet"
        return "heard" if joined else "lost"

    def _follow_service(self) -> None:
        for result in self.service.take() if self.service else ():
            if isinstance(result, Health):
                self._judge_health(result)
            else:
                self._judge_canary(result)

    def _judge_health(self, health: Health) -> None:
        self.record.set(service_healthy=health.healthy, service_checked_at=health.at)
        if health.healthy and self.state is AgentState.STARTING:
            self.become(AgentState.WARMING)
        if self.state is not AgentState.READY:
            return
        if self.vitality.probed(health.probe):
            self.record.event("service", word=self.vitality.word, detail=self.vitality.detail)
        hung = causes.hung(self.run.node, self.vitality.detail, clock.now()) if self.vitality.word == HUNG else None
        self.record.set(service_state=self.vitality.word, service_detail=self.vitality.detail, trouble=hung)

    def _judge_canary(self, result: CanaryResult) -> None:
        self.record.set(canary_text=result.text)
        if not result.refused:
            self.accepted = True
        elif self.state in RUNNING:
            text = f"the canary generation was refused: {result.refused}"
            fix = "wrong weights or kernels give such text: verify the checkpoint and the stack on every node"
            self.fail(self.because(text, fix=fix, lines=self.watch.last_lines()))

    def _advance(self, now: float) -> None:
        """Steps that follow from where everybody is."""
        if self.state is AgentState.STAGED:
            self._armed_when_joined(now)
        elif self.state is AgentState.ARMED and now - self._began > self.run.armed_for_s:
            self.record.event("armed for too long")
            self._stop_now()
        elif self.state is AgentState.WARMING and self.run.leads and self._everybody_complete():
            self.become(AgentState.READY)
        elif self.state is AgentState.DRAINING:
            self._leave_when_drained(now)

    def _armed_when_joined(self, now: float) -> None:
        if self.spoke is None or self.spoke.joined:
            self.become(AgentState.ARMED)
        elif self.spoke.misfit:
            self.fail(self.because(f"the leader's agent {self.spoke.misfit}", fix=ONE_RELEASE, secondary=True))
        elif now - self._began > (LEADERS_CHECKS_S if self.spoke.reached else LINK_S):
            address = f"{self.run.leader.address}:{self.run.leader.port}"
            text = f"the leader's agent does not answer at {address} ({self.spoke.trouble or 'no word'})"
            fix = "open that port between the nodes"
            self.fail(self.because(text, fix=fix, secondary=True))  # a dead leader comes first

    def _everybody_complete(self) -> bool:
        others = [name for name in self.run.members if name != self.run.node]
        complete = all(name in self.digests and self.digests[name].complete for name in others)
        return self.accepted and self.tree.complete and complete

    def _leave_when_drained(self, now: float) -> None:
        leaders_engine_gone = self.run.leads and not self.engine_runs
        if leaders_engine_gone or now > self._deadline > 0 or not self.tree.living():
            if self.hub is not None:
                self.hub.send(End())
            self.become(AgentState.STOPPING)

    def _start(self) -> None:
        if self.state is not AgentState.ARMED:
            return
        self.guardian.go()
        self.watch.begin(clock.now())
        self.become(AgentState.STARTING)
        if self.hub is not None:
            self.hub.send(Go())
        if self.run.service:
            self.service = self._service(self.run.service.url)
            self.service.start()

    def _service(self, url: str) -> Service:
        return Service(
            url,
            self.run.watch.http,
            self.run.canary,
            self.run.model,
            patience=self.vitality.patience,
            authorization=self.run.authorization(),
            counters=self.run.watch.probe.counters,
        )

    def _stop(self) -> None:
        """In good order: the leader's engine drains first, everybody else follows it."""
        if self.state in ENDING:
            return
        if self.spoke is not None and self.spoke.joined:
            self.spoke.send(Stop())
            self._drain()
        elif self.run.leads and self.engine_runs:
            self._drain()
            if self.hub is not None:
                self.hub.send(Drain())
            number = getattr(signal, f"SIG{self.run.watch.stop.leader_signal}", signal.SIGTERM)
            processes.send(*self.engine, number)
        else:
            self._stop_now()

    def _drain(self) -> None:
        if self.state in ENDING:
            return
        self.become(AgentState.DRAINING)
        self._deadline = time.monotonic() + self.run.watch.stop.drain_s + self.run.watch.stop.shutdown_s

    def _stop_now(self) -> None:
        if self.state in OVER:
            return
        if self.hub is not None:
            self.hub.send(End(now=True))
        if self.spoke is not None:
            self.spoke.send(Stop(now=True))
        self.become(AgentState.STOPPING)

    def because(self, text: str, **more: Any) -> Cause:
        """A cause on this node, seen now."""
        return Cause(node=self.run.node, text=text, at=clock.now(), **more)

    def fail(self, cause: Cause, *, tell: bool = True) -> None:
        """Take the first cause of this node, tell the gang; a later one is only an event. tell: a member's leader does
        not know of it yet."""
        self.record.event("cause", **cause.as_json())
        if self.state in ENDING:
            return
        self.cause = cause
        if self.run.leads:
            self.verdict = self.verdict or cause
            if self.hub is not None:
                self.hub.send(End(verdict=self.verdict))
        elif self.spoke is not None and tell:
            self.spoke.send(Account(type="failed", cause=cause))
        self.become(AgentState.FAILED)
