"""The engine's processes: which rank each one is, which have died and how, and how to end them all."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from orchestrator.node import files, processes, supervision
from orchestrator.node.agent import clock
from orchestrator.node.agent.record import Now
from orchestrator.node.agent.staged_run import Run
from orchestrator.node.engine.engine_container import EngineContainer
from orchestrator.node.engine.gpus import GpuMemory
from orchestrator.node.engine.watch import rank_of_title
from orchestrator.node.files import PROCESSES_FILE
from orchestrator.node.supervision import Death
from orchestrator.protocol.report import RankReport, RankState

SEARCH_EVERY_S = 0.25
LOOK_EVERY_S = 2.0
_LONGEST_NAME = 60
_GONE = (b"Z", b"X", b"x")
"""States of proc(5)."""
COMPILERS = frozenset({"ninja", "nvcc", "cicc", "ptxas", "cudafe++", "fatbinary", "nvlink", "cc1plus"})
"""Programs that compile a CUDA kernel for the engine, which takes up to half an hour: ninja and what nvcc starts."""


@dataclass
class EngineProcess:
    """A process of the engine that is not supposed to end while it serves."""

    title: str = ""
    pid: int = 0
    start: int = 0
    gpu: int = -1
    pidfd: int = -1
    stat: int = -1
    """/proc/PID/task/PID/stat, open: its main thread's state."""
    state: RankState = RankState.EXPECTED
    parent: EngineProcess | None = None
    ending: bool = False
    """Its main thread was seen ending."""
    outlived: bool = False
    """It was seen alive after a process above it was ending."""
    alive_at: float = 0.0
    """When it was last seen whole, by the agent's clock."""

    @property
    def number(self) -> int | None:
        """Its TP rank, None if it is none."""
        return None

    @property
    def name(self) -> str:
        """For the operator."""
        return f"the engine's process {self.title} (pid {self.pid})" if self.title else "the engine's parent process"

    @property
    def above(self) -> list[EngineProcess]:
        """Its parent, that one's parent, and so on, up to the guardian or out of the container."""
        return [self.parent, *self.parent.above] if self.parent is not None else []

    @property
    def lives(self) -> bool:
        """Whether its process exists, though a signal may have stopped it."""
        return self.state in (RankState.ALIVE, RankState.STOPPED)

    def adopt(self, process: processes.Process) -> bool:
        """Begin to watch a process; False if it died meanwhile: its parent's end or the log will explain it."""
        try:
            self.pidfd = os.pidfd_open(process.pid)
        except OSError:
            return False
        with contextlib.suppress(OSError):
            self.stat = os.open(f"/proc/{process.pid}/task/{process.pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        self.pid, self.start, self.state = process.pid, process.start, RankState.ALIVE
        return True

    def release(self) -> None:
        """Stop watching it."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        self.forget_thread()

    def forget_thread(self) -> None:
        """Its main thread's end means nothing; its process's end still does."""
        if self.stat >= 0:
            os.close(self.stat)
            self.stat = -1


@dataclass
class Rank(EngineProcess):
    """One TP rank's process."""

    tp_rank: int = 0
    gpu_memory: int = 0

    @property
    def number(self) -> int | None:
        """Its TP rank."""
        return self.tp_rank

    @property
    def name(self) -> str:
        """For the operator."""
        return f"TP{self.tp_rank}{f' on GPU {self.gpu}' if self.gpu >= 0 else ''} (pid {self.pid})"

    def report(self) -> RankReport:
        """The rank's entry in the report."""
        return RankReport(
            tp_rank=self.tp_rank, gpu=self.gpu, pid=self.pid, state=self.state, gpu_memory_bytes=self.gpu_memory
        )


@dataclass(frozen=True)
class ProcessDeath:
    """A process of the engine ended.

    alive_at: when it was last seen whole, by the agent's clock
    follows:  whether a process above it was ending first: True where it was seen to live on, False where all above it
              were whole when it was dead, None where both happened between two looks. A dying process kills its
              children (PR_SET_PDEATHSIG) within milliseconds, and its own end may show 0.4 s after theirs.
    """

    part: EngineProcess
    death: Death
    alive_at: float = 0.0
    follows: bool | None = False


@dataclass
class ProcessTree:
    """All processes below the guardian and below us, and all in the run's container. Not included: the guardian, and
    our helpers that query NVML or a container's daemon."""

    run: Run
    guardian_pid: int
    memory: GpuMemory
    disk: Now = field(default_factory=Now)
    ranks: list[Rank] = field(default_factory=list)
    others: list[EngineProcess] = field(default_factory=list)
    """Processes that the engine needs beside its ranks."""
    above: list[EngineProcess] = field(default_factory=list)
    """Their parents that are none of them."""
    container: EngineContainer | None = None
    gone_at: float = 0.0
    """When all of them had ended, monotonic seconds."""
    looker: int = 0
    """Process id of what looks at a hung engine, 0 for none: it and its own are none of the engine's."""
    stopped: dict[int, str] = field(default_factory=dict)
    """Process id and title of processes that a signal has stopped, without ranks."""
    compilers: tuple[str, ...] = ()
    """Those of COMPILERS that the engine runs now."""
    ever: set[int] = field(default_factory=set)
    """Process ids of all processes that the engine has ever had."""
    _title: re.Pattern[str] | None = None
    _looked_at: float = 0.0
    _known: frozenset[tuple[int, int]] = frozenset()

    def __post_init__(self) -> None:
        self.container = EngineContainer.of(self.run)
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

    @property
    def parts(self) -> list[EngineProcess]:
        """Processes whose end is an error."""
        return [*self.ranks, *self.others]

    def descriptors(self) -> Iterator[tuple[int, int]]:
        """A pidfd is readable once its process has ended."""
        return ((part.pidfd, select.POLLIN) for part in self.parts if part.pidfd >= 0)

    def step(self, now: float, ready: set[int]) -> list[ProcessDeath]:
        """Check at every call for ranks and others that have died, and from time to time for new ones."""
        began = clock.now()
        self._look_above()
        threads = self._main_threads()
        processes = [
            self._reap(part, over=part.pidfd in ready)
            for part, (state, _) in threads
            if part.pidfd in ready or state in _GONE
        ]
        died = [death for death in processes if death is not None]
        self._note_alive(began, threads)
        if now - self._looked_at >= (LOOK_EVERY_S if self.complete else SEARCH_EVERY_S):
            self._looked_at = now
            self._look()
        return died

    @property
    def watched(self) -> bool:
        """Whether some rank's main thread can be checked."""
        return any(part.stat >= 0 for part in self.parts)

    def some_die(self) -> bool:
        """Whether a main thread has ended, or begins to above the ranks. Its process may not have: CUDA delays the exit
        by 200 to 400 ms."""
        began, begins = clock.now(), self._look_above()
        threads = self._main_threads()
        if any(state in _GONE for _, (state, _) in threads):
            return True
        self._note_alive(began, threads)
        return begins

    def living(self) -> list[processes.Process]:
        """The engine's processes that still run, freshly read from /proc."""
        everything = supervision.everything()
        descendants = supervision.descendants([os.getpid(), self.guardian_pid], everything)
        helpers = {self.guardian_pid, *self.memory.helpers}
        if self.looker:
            below = supervision.descendants([self.looker], everything)
            helpers |= {self.looker, *(process.pid for process in below)}
        if self.container is not None:
            helpers |= self.container.helpers
            descendants += [process for process in self.container.processes(everything) if process not in descendants]
        return [process for process in descendants if process.pid not in helpers and not process.gone]

    def kill(self) -> int:
        """Send SIGKILL to all processes of the engine; returns how many still existed."""
        living = self.living()
        for process in living:
            supervision.send(process.pid, process.start, signal.SIGKILL)
        return len(living)

    def signal_parent(self, parent: tuple[int, int], number: int) -> None:
        """Send a signal to the engine's parent process: (process id, start time)."""
        supervision.send(*parent, number)

    @property
    def parents_end(self) -> bool:
        """Whether a process above the ranks was seen ending."""
        return any(part.ending for part in self.above)

    def dying_launcher(self) -> Death | None:
        """How the uppermost process above the ranks dies, if it does and the kernel shows it; None otherwise."""
        doomed = (part for part in self.above if supervision.doomed(part.pid, part.start))  # parents come first
        return next((supervision.death_of(part.pid, part.start, part.pidfd) for part in doomed), None)

    def note_memory(self) -> None:
        """Copy NVML's newest answer into the ranks."""
        for rank in self.ranks:
            use = (self.memory.answer or {}).get(rank.gpu)
            rank.gpu_memory = use.bytes_of(rank.pid) if use and rank.lives else 0

    def let_go(self) -> None:
        """Stop watching the ranks: they are now supposed to end."""
        for part in (*self.parts, *self.above):
            part.release()

    def reap_all(self) -> None:
        """After the end: mark every rank as dead."""
        self.gone_at = time.monotonic()
        self.stopped = {}
        for rank in self.ranks:
            if rank.lives:
                rank.state = RankState.DEAD
            rank.gpu_memory = 0

    def _adopt(self, number: int | None, process: processes.Process, living: list[processes.Process]) -> None:
        """A process that names itself as a rank becomes that rank's, where none is yet."""
        for rank in self.ranks:
            if number == rank.tp_rank and rank.state is RankState.EXPECTED and rank.adopt(process):
                rank.parent = self._parent_of(process, living)

    def _look(self) -> None:
        living = self.living()
        self._remember(living)
        self._note_stopped(living)
        self.compilers = tuple(sorted({process.name for process in living} & COMPILERS))
        if self._title is None:
            return
        known = {part.pid for part in (*self.parts, *self.above) if part.lives}
        expected = [rank.tp_rank for rank in self.ranks]
        for process in living:
            if process.pid in known:
                continue
            title = supervision.title(process.pid)
            if self._title.search(title) is None:
                self._take_other(process, title, living)
                continue
            self._adopt(rank_of_title(title, self._title, expected), process, living)

    def _take_other(self, process: processes.Process, title: str, living: list[processes.Process]) -> None:
        other = EngineProcess(title.partition(" ")[0][:_LONGEST_NAME])
        if any(re.search(pattern, title) for pattern in self.run.watch.other_titles) and other.adopt(process):
            self.others.append(other)
            other.parent = self._parent_of(process, living)

    def _parent_of(self, process: processes.Process, living: list[processes.Process]) -> EngineProcess | None:
        parent = next((ancestor for ancestor in living if ancestor.pid == process.parent), None)
        if parent is None:
            return None
        known = (part for part in (*self.others, *self.above) if (part.pid, part.start) == (parent.pid, parent.start))
        part = next(known, None)
        if part is None:
            part = EngineProcess()
            if not part.adopt(parent):
                return None
            part.parent = self._parent_of(parent, living)
            self.above.append(part)
        return part

    def _note_stopped(self, living: list[processes.Process]) -> None:
        """A stopped process (T, proc(5)) is alive, and all others wait for it."""
        states = {process.pid: process.state for process in living}
        for rank in self.ranks:
            if rank.lives:
                rank.state = RankState.STOPPED if states.get(rank.pid) == "T" else RankState.ALIVE
        of_ranks = {rank.pid for rank in self.ranks}
        self.stopped = {
            pid: supervision.title(pid)[:_LONGEST_NAME]
            for pid, state in states.items()
            if state == "T" and pid not in of_ranks
        }

    def _look_above(self) -> bool:
        """Before a look at those below: who still lives then has outlived them. True if one begins to end."""
        begins = [part for part in (*self.others, *self.above) if not part.ending and _ending(*_main_thread(part))]
        for part in begins:
            part.ending = True
        return bool(begins)

    def _main_threads(self) -> list[tuple[EngineProcess, tuple[bytes, int]]]:
        """Those of the parts, each read once a look: see `_main_thread`."""
        return [(part, _main_thread(part)) for part in self.parts]

    def _note_alive(self, began: float, threads: Iterable[tuple[EngineProcess, tuple[bytes, int]]]) -> None:
        """began: before they were looked at; one may have been killed since, while this process had to wait. One that
        is ending may have closed its connections, and others end by that."""
        for part, thread in threads:
            part.outlived = part.lives and any(process.ending for process in part.above)
            if not _ending(*thread):
                part.alive_at = began

    def _reap(self, part: EngineProcess, *, over: bool) -> ProcessDeath | None:
        """over: the process has ended; else only its main thread has, which counts only if it was killed."""
        death = supervision.death_of(part.pid, part.start, part.pidfd)
        failed = bool(death.signal or death.exit_code)
        if not over and not failed:
            part.forget_thread()
            return None
        part.state = RankState.DEAD
        part.release()
        if isinstance(part, Rank):
            part.gpu_memory = 0
        elif not failed:
            return None
        doomed = any(supervision.doomed(process.pid, process.start) for process in part.above)
        return ProcessDeath(part, death, part.alive_at, part.outlived or (None if doomed else False))

    def _remember(self, living: list[processes.Process]) -> None:
        """Write down our processes, for a `stop` that finds no agent."""
        known = frozenset((process.pid, process.start) for process in living)
        if known != self._known:
            self._known = known
            self.ever |= {pid for pid, _ in known}
            value = {"processes": sorted(known)}
            self.disk.put(partial(files.write_json, self.run.path(PROCESSES_FILE), value), replacing="processes")


def _ending(state: bytes, flags: int) -> bool:
    return state in _GONE or bool(flags & supervision.PF_EXITING)


def _main_thread(part: EngineProcess) -> tuple[bytes, int]:
    """Its state and flags, without the rest of the line: this is read a hundred times a second."""
    if part.stat < 0:
        return b"", 0
    try:
        text = os.pread(part.stat, 512, 0)
    except OSError:
        return b"X", 0
    fields = text[text.rfind(b")") + 2 :].split(b" ", 7)
    return fields[0], int(fields[6])
