"""One node's part of a gang while it lives: what the agent holds, how it waits for all of it, how it says it."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from orchestrator.node.agent import clock
from orchestrator.node.agent.disk import Now
from orchestrator.node.agent.record import Record
from orchestrator.node.agent.run import Run
from orchestrator.node.engine import transport
from orchestrator.node.engine.gpus import GpuMemory
from orchestrator.node.engine.guardian import Guardian
from orchestrator.node.engine.logfile import LineCutter, LogFile
from orchestrator.node.engine.redact import Redactor
from orchestrator.node.engine.service import Service
from orchestrator.node.engine.tree import Tree
from orchestrator.node.engine.vitality import Vitality
from orchestrator.node.engine.watch import LogWatch
from orchestrator.node.network.link import Event, Hub, Spoke
from orchestrator.protocol.link import Digest, Pulse
from orchestrator.protocol.report import AgentState, Cause

MOST_REMARKS = 20
TICK_S = 0.5
DYING_S = 0.01
"""Between two looks at the ranks' main threads: a peer ends 20 ms after a killed one at the earliest, and who was first
is what matters. One look takes 3 microseconds a rank."""
PULSE_S = 1.0
LOG_BYTES = 16 * 1024
"""Of one read: some tens of milliseconds of work even where every byte is a line."""
LOG_S = 0.2
"""For the engine's log in one round of the loop: one that floods its log must not keep us from everything else."""
LAST_WORDS_S = 2.0
"""For what is in the pipe when a process has died; the others hear from us meanwhile."""


@dataclass
class Part:
    """`state` goes one way: staged, armed, starting, warming, ready, draining, stopping, stopped; or failed."""

    run: Run
    guardian: Guardian
    memory: GpuMemory
    record: Record
    watch: LogWatch
    tree: Tree
    log: LogFile
    state: AgentState = AgentState.STAGED
    hub: Hub | None = None
    spoke: Spoke | None = None
    service: Service | None = None
    remarks: list[str] = field(default_factory=list)
    """What the checks remarked on."""
    cause: Cause | None = None
    verdict: Cause | None = None
    """The gang's first cause, as the leader's agent saw them arrive."""
    engine: tuple[int, int] = (0, 0)
    """Process id and start time of the engine's parent."""
    ended: set[str] = field(default_factory=set)
    """Nodes that have said that nothing of theirs is left, or whose agent closed the connection: they have no lease."""
    wake: int = -1
    """Readable when a signal arrived."""
    pulsed: float = 0.0
    """When the others last heard from us; 0 makes them hear at once."""
    lines: LineCutter = field(default_factory=LineCutter)
    redactor: Redactor = field(default_factory=Redactor)
    disk: Now = field(default_factory=Now)
    vitality: Vitality = field(default_factory=Vitality)
    """Of the engine behind the service (leader)."""

    def wait(self, timeout_s: float = TICK_S) -> set[int]:
        """Wait until something happens, or not longer than this; returns the descriptors that are ready."""
        poll = select.poll()
        for descriptor, mask in self._descriptors():
            poll.register(descriptor, mask)
        ready = self._poll(poll, timeout_s)
        if self.wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake, 4096)
        return ready

    def _poll(self, poll: select.poll, timeout_s: float) -> set[int]:
        """What is ready; nothing also where a rank dies, which no descriptor tells in time."""
        until = time.monotonic() + timeout_s
        while True:
            left = until - time.monotonic()
            pause = min(left, DYING_S) if self.tree.watched else left
            ready = {descriptor for descriptor, _ in poll.poll(max(0.0, pause * 1000))}
            if ready or time.monotonic() >= until or self.tree.some_die():
                return ready

    def _descriptors(self) -> Iterator[tuple[int, int]]:
        memory = self.memory.fileno()
        service = self.service.wake if self.service is not None else -1
        for descriptor in (self.wake, self.guardian.channel.fileno(), self.guardian.log, service, memory or -1):
            if descriptor >= 0:
                yield descriptor, select.POLLIN
        yield from self.tree.descriptors()
        link = self.hub or self.spoke
        if link is not None:
            yield from link.descriptors()

    def link_events(self, now: float) -> list[Event]:
        """What happened on the leader link."""
        link = self.hub or self.spoke
        return link.step(now) if link is not None else []

    def read_log(self) -> bool:
        """Take what the engine has written so far, for a moment; True where there was nothing more to read."""
        until = time.monotonic() + LOG_S
        while time.monotonic() < until:
            if self.guardian.log < 0:
                return True
            try:
                data = os.read(self.guardian.log, LOG_BYTES)
            except BlockingIOError:
                return True
            if not data:
                os.close(self.guardian.log)
                self.guardian.log = -1
                self._take(self.redactor.finish())
                self._watch(b"\n", clock.now())  # a last line without an end
                return True
            self._take(self.redactor.feed(data))
        return False

    def read_last_words(self) -> None:
        """Take all that was written before a death."""
        until = time.monotonic() + LAST_WORDS_S
        while not self.read_log() and time.monotonic() < until:
            self.pulse(time.monotonic())

    def _take(self, data: bytes) -> None:
        """Nobody gets to see the log but as it is here."""
        if data:
            self.disk.put(partial(self.log.write, data), size=len(data))
            self._watch(data, clock.now())

    def _watch(self, data: bytes, now: float) -> None:
        for line in self.lines.feed(data):
            try:
                self._look_at(line, now)
            except Exception as defect:  # noqa: PERF203 - whoever writes a line must not end the engine by it
                self._remark_unreadable(defect)

    def _look_at(self, line: str, now: float) -> None:
        if self.watch.feed(line, now):
            self.record.event("phase", **self.watch.phase.as_json())
        if self.watch.announces_pause(line):
            self.vitality.paused(time.monotonic())
        elif self.watch.shows_work(line):
            self.vitality.worked(time.monotonic())

    def _remark_unreadable(self, defect: Exception) -> None:
        words = f"a line of the engine's log could not be read (defect in the agent: {type(defect).__name__}: {defect})"
        if words not in self.remarks and len(self.remarks) < MOST_REMARKS:
            self.remarks.append(words)
            self.record.event("remark", text=words)

    def become(self, state: AgentState) -> None:
        """Enter a state: everybody hears of it at once."""
        if state != self.state:
            self.state = state
            if state is AgentState.READY:
                self.watch.finish(clock.now())  # a worker's log says nothing of it
                self.disk.put(partial(transport.note, self.run))
            self.record.event("state", state=state.value)
            self.pulsed = 0.0
        self.flush()

    def pulse(self, now: float) -> None:
        """Let the others hear from us, every second and at every change."""
        if now - self.pulsed < PULSE_S:
            return
        self.pulsed = now
        self.guardian.beat()
        if self.hub is not None:
            self.hub.send(Pulse(state=self.state))
        if self.spoke is not None:
            self.spoke.send(self._digest())

    def _digest(self) -> Digest:
        return Digest(
            state=self.state,
            phase=self.watch.phase,
            complete=self.tree.complete,
            disk=tuple(self.disk.remarks()),
            at=clock.now(),
        )

    def _heard_remarks(self) -> list[str]:
        """What the others say that their own reports may not: their disks stall."""
        return []

    def _stopped(self) -> list[str]:
        """Processes of the engine's that a signal has stopped; of ranks `ranks` tells."""
        names = {pid: f"process {pid} ({title})" for pid, title in self.tree.stopped.items()}
        names.update({pid: f"the engine's parent process (pid {pid})" for pid in names if pid == self.engine[0]})
        return [f"{name} is stopped by a signal" for name in names.values()]

    def flush(self, *, force: bool = False) -> None:
        """Write the report where it would say something new."""
        self.record.set(
            state=self.state,
            phase=self.watch.phase,
            engine_pid=self.engine[0],
            ranks=tuple(rank.report() for rank in self.tree.ranks),
            remarks=(*self.remarks, *self._stopped(), *self.disk.remarks(), *self._heard_remarks()),
            cause=self.cause,
            verdict=self.verdict,
        )
        self.record.flush(force=force)
