"""The agent's report as a file: `report` reads it, and later verbs find it after a crash."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from orchestrator import __version__
from orchestrator.node import files, processes
from orchestrator.node.agent import clock
from orchestrator.node.agent import run as runs
from orchestrator.node.agent.disk import Now
from orchestrator.protocol.report import AgentState, Phase, RankReport, Report

HEARTBEAT_S = 1.0


def staged(run: runs.Run, now: float) -> Report:
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
        service_healthy=False if run.service else None,
        boot_id=processes.boot_id(),
        clock=clock.ANCHOR,
        allowed_s=run.watch.allowed_s,
        barrier_s=run.watch.barrier_s,
    )


@dataclass
class Record:
    """Holds the report, writes it when it has changed or a heartbeat is due, and appends events."""

    run: runs.Run
    disk: Now = field(default_factory=Now)
    value: Report = field(init=False)
    _written: Report | None = None
    _written_at: float = 0.0

    def __post_init__(self) -> None:
        self.value = staged(self.run, clock.now())

    def set(self, **values: Any) -> None:
        """Change fields of the report; `flush` writes them."""
        self.value = replace(self.value, **values)
        phase = self.value.phase
        if phase.name and phase.name not in self.value.began:
            at = round(max(0.0, phase.since - self.value.started_at), 1)
            self.value = replace(self.value, began={**self.value.began, phase.name: at})

    def flush(self, *, force: bool = False) -> None:
        """Queue a write if the content has changed. A full disk must not end the agent."""
        now = clock.now()
        if not force and self.value == self._written and 0 <= now - self._written_at < HEARTBEAT_S:
            return
        report = json.dumps(replace(self.value, updated_at=now).as_json(), separators=(",", ":")) + "\n"
        self.disk.put(partial(files.write, self.run.path(files.REPORT_FILE), report), replacing="report")
        self._written, self._written_at = self.value, now

    def event(self, what: str, **details: Any) -> None:
        """Queue one line for the run's events."""
        line = json.dumps({"at": clock.now(), "event": what, **details})
        self.disk.put(partial(_append, self.run.path(files.EVENTS_LOG), line + "\n"), size=len(line))


def _append(path: str, line: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(line)
