"""Jobs of a tuning run: which node has which, and which return when a node is lost. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from orchestrator.tuning.messages import TuneJob

MOST_TRIES = 2
"""Of a job whose tuner died, or whose node was lost."""


@dataclass
class JobQueue:
    """Nodes take some at a time; what they do not finish goes to the next node that asks.

    lost: jobs that were begun too often without an end, with why
    """

    jobs: Iterable[TuneJob]
    lost: dict[str, str] = field(default_factory=dict)
    _waiting: list[TuneJob] = field(init=False)
    _out: dict[str, TuneJob] = field(default_factory=dict)
    _tries: dict[str, int] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self._waiting = list(self.jobs)

    def take(self, most: int) -> tuple[TuneJob, ...]:
        """The next ones, in their order; waits while other nodes have jobs that may come back. () when all is over."""
        with self._changed:
            while not self._waiting and self._out:
                self._changed.wait()
            taken, self._waiting = self._waiting[:most], self._waiting[most:]
            self._out |= {job.id: job for job in taken}
            return tuple(taken)

    def end(self, job: str) -> None:
        """It is done, or has failed for good."""
        with self._changed:
            self._out.pop(job, None)
            self._changed.notify_all()

    def give_back(self, jobs: Sequence[TuneJob], why: str) -> None:
        """Those that are not finished go to other nodes."""
        with self._changed:
            for job in jobs:
                if self._out.pop(job.id, None) is None:
                    continue
                self._tries[job.id] = self._tries.get(job.id, 0) + 1
                if self._tries[job.id] >= MOST_TRIES:
                    self.lost[job.id] = why
                else:
                    self._waiting.append(job)
            self._changed.notify_all()
