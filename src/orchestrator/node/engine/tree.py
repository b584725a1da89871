"""The engine's processes: which rank each one is, which have died and how, and how to end them all."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from orchestrator.node import files, processes
from orchestrator.node.agent import clock
from orchestrator.node.agent.disk import Now
from orchestrator.node.agent.run import Run
from orchestrator.node.cache.ahead import ReadAhead
from orchestrator.node.engine import deaths
from orchestrator.node.engine.deaths import Death
from orchestrator.node.engine.engine_container import Container
from orchestrator.node.engine.gpus import GpuMemory
from orchestrator.node.engine.watch import rank_of_title
from orchestrator.node.files import PROCESSES_FILE
from orchestrator.protocol.report import RankReport, RankState

SEARCH_EVERY_S = 0.25
LOOK_EVERY_S = 2.0


@dataclass
class Rank:
    """One TP rank's process."""

    tp_rank: int
    gpu: int
    pid: int = 0
    start: int = 0
    pidfd: int = -1
    stat: int = -1
    """/proc/PID/task/PID/stat, open: its main thread's state."""
    state: RankState = RankState.EXPECTED
    gpu_memory: int = 0

    @property
    def lives(self) -> bool:
        """Whether its process exists, though a signal may have stopped it."""
        return self.state in (RankState.ALIVE, RankState.STOPPED)

    def report(self) -> RankReport:
        """The rank's entry in the report."""
        return RankReport(
            tp_rank=self.tp_rank, gpu=self.gpu, pid=self.pid, state=self.state, gpu_memory_bytes=self.gpu_memory
        )


@dataclass(frozen=True)
class RankDied:
    """A rank's process ended."""

    rank: Rank
    death: Death
    alive_at: float = 0.0
    """When it was last seen alive, by the agent's clock."""


@dataclass
class Tree:
    """All processes below the guardian and below us, and all in the run's container. Not included: the guardian, and
    our helpers that query NVML or a container's daemon or read files ahead."""

    run: Run
    guardian_pid: int
    memory: GpuMemory
    disk: Now = field(default_factory=Now)
    ahead: ReadAhead | None = None
    ranks: list[Rank] = field(default_factory=list)
    container: Container | None = None
    gone_at: float = 0.0
    """When all of them had ended, monotonic seconds."""
    stopped: dict[int, str] = field(default_factory=dict)
    """Process id and title of processes that a signal has stopped, without ranks."""
    ever: set[int] = field(default_factory=set)
    """Process ids of all processes that the engine has ever had."""
    alive_at: float = 0.0
    """When the ranks that are not dead were last seen alive, by the agent's clock."""
    _title: re.Pattern[str] | None = None
    _looked_at: float = 0.0
    _known: frozenset[tuple[int, int]] = frozenset()

    def __post_init__(self) -> None:
        self.container = Container.of(self.run)
        title = self.run.watch.rank_title
        self._title = re.compile(title) if title else None
        self.ranks = [
            Rank(tp_rank=tp_rank, gpu=self.run.gpus[place] if place < len(self.run.gpus) else -1)
            for place, tp_rank in enumerate(self.run.tp_ranks)
        ]

    @property
    def complete(self) -> bool:
        """Whether every rank's process is alive."""
        return all(rank.lives for rank in self.ranks)

    def descriptors(self) -> Iterator[tuple[int, int]]:
        """A pidfd is readable once its process has ended."""
        return ((rank.pidfd, select.POLLIN) for rank in self.ranks if rank.pidfd >= 0)

    def step(self, now: float, ready: set[int]) -> list[RankDied]:
        """Check at every call for ranks that have died, and from time to time for new ones."""
        over = [rank for rank in self.ranks if rank.pidfd in ready]
        found = [self._bury(rank, over=rank in over) for rank in self.ranks if rank in over or dying(rank)]
        died = [death for death in found if death is not None]
        self.alive_at = clock.now()
        pause = LOOK_EVERY_S if self.complete else SEARCH_EVERY_S
        if now - self._looked_at >= pause:
            self._looked_at = now
            self._look()
        return died

    @property
    def watched(self) -> bool:
        """Whether some rank's main thread can be checked."""
        return any(rank.stat >= 0 for rank in self.ranks)

    def some_die(self) -> bool:
        """Whether a rank's main thread has ended. Its process may not have: CUDA delays the exit by 200 to 400 ms."""
        if any(dying(rank) for rank in self.ranks):
            return True
        self.alive_at = clock.now()
        return False

    def living(self) -> list[processes.Process]:
        """The engine's processes that still run, freshly read from /proc."""
        everything = processes.everything()
        found = processes.descendants([os.getpid(), self.guardian_pid], everything)
        helpers = {self.guardian_pid, *self.memory.helpers, *(self.ahead.helpers if self.ahead else ())}
        if self.container is not None:
            helpers |= self.container.helpers
            found += [process for process in self.container.processes(everything) if process not in found]
        return [process for process in found if process.pid not in helpers and not process.gone]

    def kill(self) -> int:
        """Send SIGKILL to all processes of the engine; returns how many still existed."""
        living = self.living()
        for process in living:
            processes.send(process.pid, process.start, signal.SIGKILL)
        return len(living)

    def signal_parent(self, parent: tuple[int, int], number: int) -> None:
        """Send a signal to the engine's parent process: (process id, start time)."""
        processes.send(*parent, number)

    def parent_lives(self, parent: tuple[int, int]) -> bool:
        """Whether the engine's parent process, (process id, start time), is still alive."""
        return processes.alive(*parent)

    def note_memory(self) -> None:
        """Copy NVML's newest answer into the ranks."""
        for rank in self.ranks:
            use = (self.memory.answer or {}).get(rank.gpu)
            rank.gpu_memory = use.bytes_of(rank.pid) if use and rank.lives else 0

    def let_go(self) -> None:
        """Stop watching the ranks: they are now supposed to end."""
        for rank in self.ranks:
            self._release(rank)

    def bury_all(self) -> None:
        """After the end: mark every rank as dead."""
        self.gone_at = time.monotonic()
        self.stopped = {}
        for rank in self.ranks:
            if rank.lives:
                rank.state = RankState.DEAD
            rank.gpu_memory = 0

    def _look(self) -> None:
        living = self.living()
        self._remember(living)
        self._note_stopped(living)
        if self._title is None or self.complete:
            return
        taken = {rank.pid for rank in self.ranks if rank.lives}
        expected = [rank.tp_rank for rank in self.ranks]
        for process in living:
            if process.pid in taken:
                continue
            number = rank_of_title(processes.title(process.pid), self._title, expected)
            for rank in self.ranks:
                if number == rank.tp_rank and rank.state is RankState.EXPECTED:
                    self._adopt(rank, process)

    def _note_stopped(self, living: list[processes.Process]) -> None:
        """A stopped process (T, proc(5)) is alive, and all others wait for it."""
        states = {process.pid: process.state for process in living}
        for rank in self.ranks:
            if rank.lives:
                rank.state = RankState.STOPPED if states.get(rank.pid) == "T" else RankState.ALIVE
        of_ranks = {rank.pid for rank in self.ranks}
        self.stopped = {
            pid: processes.title(pid)[:60] for pid, state in states.items() if state == "T" and pid not in of_ranks
        }

    def _adopt(self, rank: Rank, process: processes.Process) -> None:
        try:
            rank.pidfd = os.pidfd_open(process.pid)
        except OSError:
            return  # it died meanwhile: its parent's end or the log will explain it
        with contextlib.suppress(OSError):
            rank.stat = os.open(f"/proc/{process.pid}/task/{process.pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        rank.pid, rank.start, rank.state = process.pid, process.start, RankState.ALIVE

    def _bury(self, rank: Rank, *, over: bool) -> RankDied | None:
        """over: the process has ended; else only its main thread has, which counts only if it was killed."""
        death = deaths.death_of(rank.pid, rank.start, rank.pidfd)
        if not over and not (death.signal or death.exit_code):
            self._forget_thread(rank)
            return None
        rank.state, rank.gpu_memory = RankState.DEAD, 0
        self._release(rank)
        return RankDied(rank, death, self.alive_at)

    def _release(self, rank: Rank) -> None:
        if rank.pidfd >= 0:
            os.close(rank.pidfd)
            rank.pidfd = -1
        self._forget_thread(rank)

    def _forget_thread(self, rank: Rank) -> None:
        if rank.stat >= 0:
            os.close(rank.stat)
            rank.stat = -1

    def _remember(self, living: list[processes.Process]) -> None:
        """Write down our processes, for a `stop` that finds no agent."""
        known = frozenset((process.pid, process.start) for process in living)
        if known != self._known:
            self._known = known
            self.ever |= {pid for pid, _ in known}
            value = {"processes": sorted(known)}
            self.disk.put(partial(files.write_json, self.run.path(PROCESSES_FILE), value), replacing="processes")


def dying(rank: Rank) -> bool:
    """Whether its main thread has ended (state Z or X of proc(5)) or is already gone."""
    if rank.stat < 0:
        return False
    try:
        text = os.pread(rank.stat, 512, 0)
    except OSError:
        return True
    return text[text.rfind(b")") + 2 :][:1] in b"ZXx"
