"""Reads the engine's log for the agent: redacts it, writes it to its file, and searches it for phases and causes. Each
read takes limited time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from orchestrator.node.agent import clock
from orchestrator.node.agent.record import Now, Record
from orchestrator.node.engine.logfile import LineCutter, LogFile, Redactor
from orchestrator.node.engine.vitality import Vitality
from orchestrator.node.engine.watch import LogWatch
from orchestrator.node.network.nccl_transport import Rails
from orchestrator.protocol.planned import NodeNetwork

MOST_REMARKS = 20
READ_BYTES = 16 * 1024
"""Size of one read: some tens of milliseconds of work even if every byte is a line."""
READ_S = 0.2
"""Limit per round of the loop: an engine that floods its log must not block everything else."""
LAST_WORDS_S = 2.0
"""Limit for reading what is left in the pipe after a process has died; we still send to the others meanwhile."""


@dataclass
class EngineLog:
    """Reads the pipe that holds the engine's stdout and stderr."""

    pipe: int
    """Reading end; -1 once it has ended."""
    file: LogFile
    watch: LogWatch
    record: Record
    redactor: Redactor = field(default_factory=Redactor)
    disk: Now = field(default_factory=Now)
    vitality: Vitality = field(default_factory=Vitality)
    rails: Rails = field(default_factory=lambda: Rails(NodeNetwork()))
    remarks: list[str] = field(default_factory=list)
    """Remarks on log lines about lost speed, and on lines that could not be read."""
    _lines: LineCutter = field(default_factory=LineCutter)

    def read(self) -> bool:
        """Read the engine's output for a limited time; True if there was nothing more to read."""
        until = time.monotonic() + READ_S
        while time.monotonic() < until:
            if self.pipe < 0:
                return True
            try:
                data = os.read(self.pipe, READ_BYTES)
            except BlockingIOError:
                return True
            if not data:
                os.close(self.pipe)
                self.pipe = -1
                self._take(self.redactor.finish())
                self._watch(b"\n", clock.now())  # a last line without a line end
                return True
            self._take(self.redactor.feed(data))
        return False

    def read_last_words(self, meanwhile: Callable[[], None]) -> None:
        """Read all that was written before a death."""
        until = time.monotonic() + LAST_WORDS_S
        while not self.read() and time.monotonic() < until:
            meanwhile()

    def close(self) -> None:
        """Close the file, once everything is written."""
        self.disk.put(self.file.close)

    def _take(self, data: bytes) -> None:
        """Write and scan the log, already redacted."""
        if data:
            self.disk.put(partial(self.file.write, data), size=len(data))
            self._watch(data, clock.now())

    def _watch(self, data: bytes, now: float) -> None:
        for line in self._lines.feed(data):
            try:
                self._look_at(line, now)
            except Exception as defect:  # noqa: PERF203 - a log line must never end the engine, whoever wrote it
                bug = f"bug in the node agent: {type(defect).__name__}: {defect}"
                self._remark(f"a line of the engine's log could not be read ({bug})")

    def _look_at(self, line: str, now: float) -> None:
        remarks_before = len(self.watch.remarked)
        if self.watch.feed(line, now):
            self.record.event("phase", **self.watch.phase.as_json())
        for words in self.watch.remarked[remarks_before:]:
            self._remark(words)
        self.rails.feed(line)
        if self.watch.announces_pause(line):
            self.vitality.paused(time.monotonic())
        elif self.watch.shows_work(line):
            self.vitality.worked(time.monotonic())

    def _remark(self, words: str) -> None:
        if words not in self.remarks and len(self.remarks) < MOST_REMARKS:
            self.remarks.append(words)
            self.record.event("remark", text=words)
