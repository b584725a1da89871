"""The agent's report and events as files, which later verbs find after a crash, and the thread that writes them.

A disk may stall for minutes (a frozen file system, a network file system without its server, a dying disk), and the
agent must not: it puts what it has to write into a queue.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from orchestrator import __version__
from orchestrator.node import files, processes
from orchestrator.node.agent import clock
from orchestrator.node.agent.staged_run import Run
from orchestrator.protocol.report import AgentState, Phase, RankReport, Report

MOST_BYTES = 8 << 20
"""Limit on data that waits to be written. Data beyond it is lost while the disk stalls, and the loss is counted."""
STALLS_AFTER_S = 5.0
"""A busy disk takes a second or two."""
JOB_BYTES = 200
"""Rough size of a job without its data."""

Job = Callable[[], None]
_NOTHING = (None, 0)


class Now:
    """Does each job at once, in the caller's thread."""

    def put(self, job: Job, *, replacing: str = "", size: int = 0) -> None:  # noqa: ARG002 - as Disk takes it
        """Do the job; if the disk refuses, the data is lost."""
        with contextlib.suppress(OSError):
            job()

    def wait_until_written(self, _: float) -> None:
        """Return at once: no job ever waits."""

    def remarks(self) -> list[str]:
        """No remarks."""
        return []


@dataclass
class Disk(Now):
    """Does jobs in the order given, without blocking the caller."""

    clock: Callable[[], float] = time.monotonic
    lost: int = 0
    """Bytes dropped because the queue was full."""
    _waiting: dict[object, tuple[Job, int]] = field(default_factory=dict)
    """Jobs and the bytes that they hold, in the order given; by their names where a later one replaces them."""
    _bytes: int = 0
    _busy_since: float = 0.0
    _longest_s: float = 0.0
    _change: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None

    def put(self, job: Job, *, replacing: str = "", size: int = 0) -> None:
        """Queue a job. replacing: it replaces a waiting job of this name."""
        size += JOB_BYTES
        with self._change:
            self._bytes -= self._waiting.pop(replacing, _NOTHING)[1]
            if self._bytes + size > MOST_BYTES:
                self.lost += size - JOB_BYTES
                return
            self._waiting[replacing or object()] = job, size
            self._bytes += size
            if self._thread is None:
                self._thread = threading.Thread(target=self._live, name="disk", daemon=True)
                self._thread.start()
            self._change.notify_all()

    def wait_until_written(self, deadline_s: float) -> None:
        """Wait until all jobs are done, or at most this long."""
        with self._change:
            self._change.wait_for(lambda: not self._waiting and not self._busy_since, deadline_s)

    def remarks(self) -> list[str]:
        """For the operator: that the disk stalls, or for how long it did, and what was lost."""
        with self._change:
            now_s = self.clock() - self._busy_since if self._busy_since else 0.0
            longest = max(self._longest_s, now_s)
            words = []
            if now_s >= STALLS_AFTER_S:
                words.append("the state directory does not respond: writes to it hang")
            elif longest >= STALLS_AFTER_S:
                words.append(f"writes to the state directory hung for {longest:.0f} s")
            if self.lost:
                words.append(f"{self.lost / 1e6:.1f} MB of the engine's log and events were lost in that time")
            return words

    def _live(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting)
                job, size = self._waiting.pop(next(iter(self._waiting)))
                self._busy_since = self.clock()
            with contextlib.suppress(OSError):
                job()
            with self._change:
                self._bytes -= size
                self._longest_s = max(self._longest_s, self.clock() - self._busy_since)
                self._busy_since = 0.0
                self._change.notify_all()


HEARTBEAT_S = 1.0


def staged(run: Run, now: float) -> Report:
    """The report of a run that is staged but has no agent yet."""
    return Report(
        run_id=run.run_id,
        gang=run.gang,
        node=run.node,
        node_rank=run.node_rank,
        nnodes=run.nnodes,
        members=run.members,
        state=AgentState.STAGED,
        phase=Phase(since=now),
        model=run.model,
        served=run.served,
        stack=run.stack,
        plan_id=run.plan_id,
        agent_version=__version__,
        started_at=now,
        updated_at=now,
        ranks=tuple(
            RankReport(tp_rank=rank, gpu=run.gpus[place] if place < len(run.gpus) else -1)
            for place, rank in enumerate(run.tp_ranks)
        ),
        service_url=run.service.url if run.service else "",
        certificate=_certificate(run),
        serves_at=run.serves_at,
        request_limit=run.request_limit,
        runs_at_once=run.runs_at_once,
        service_healthy=False if run.service else None,
        boot_id=processes.boot_id(),
        clock=clock.ANCHOR,
        allowed_s=run.watch.allowed_s,
        barrier_s=run.watch.barrier_s,
    )


def _certificate(run: Run) -> str:
    """What the service shows to its clients, read once: it was given this text, whatever the file has later."""
    if run.service is None or not run.service.certificate:
        return ""
    return files.read_text(run.secret_file(run.service.certificate)) or ""


@dataclass
class Record:
    """Holds the report, writes it when it has changed or a heartbeat is due, and appends events."""

    run: Run
    disk: Now = field(default_factory=Now)
    value: Report = field(init=False)
    _written: Report | None = None
    _written_at: float = 0.0

    def __post_init__(self) -> None:
        self.value = staged(self.run, clock.now())

    def set(self, **values: Any) -> None:
        """Change fields of the report; `flush` writes them."""
        changed = {name: value for name, value in values.items() if getattr(self.value, name) != value}
        if not changed:
            return
        self.value = replace(self.value, **changed)
        phase = self.value.phase
        if phase.name and phase.name not in self.value.began:
            at = round(max(0.0, phase.since - self.value.started_at), 1)
            self.value = replace(self.value, began={**self.value.began, phase.name: at})

    def flush(self, *, force: bool = False) -> None:
        """Queue a write if the content has changed. A full disk neither ends the agent nor makes it silent."""
        now = clock.now()
        if not force and self.value == self._written and 0 <= now - self._written_at < HEARTBEAT_S:
            return
        report = json.dumps(replace(self.value, updated_at=now).as_json(), separators=(",", ":")) + "\n"
        self.disk.put(partial(files.write_in_any_case, self.run.path(files.REPORT_FILE), report), replacing="report")
        self._written, self._written_at = self.value, now

    def event(self, what: str, **details: Any) -> None:
        """Queue one line for the run's events."""
        line = json.dumps({"at": clock.now(), "event": what, **details})
        self.disk.put(partial(_append, self.run.path(files.EVENTS_LOG), line + "\n"), size=len(line))


def _append(path: str, line: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(line)
