"""GPU memory from NVML, read by a child process with a deadline: a hung driver blocks its callers."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.node import supervision
from orchestrator.node.line_child import LineChild

FIRST_ANSWER_S = 20.0
"""Without persistence mode the driver initializes every GPU at the first query."""
ANSWER_S = 5.0
FREE_EVERY_S = 0.1
IDLE_BYTES = 1 << 30
"""An idle GPU shows up to about 615 MiB (NVML's first memory info includes what the driver reserves)."""


BUSY_PERCENT, LOW_POWER = 95, 0.4
"""A kernel that waits for its peers keeps the GPU busy at a fraction of the power: 96 % at 22 W was seen."""


@dataclass(frozen=True)
class GpuUse:
    """One GPU: bytes in use on it, and (pid, bytes) of the processes that NVML names."""

    index: int
    used: int
    processes: tuple[tuple[int, int], ...] = ()
    place: str = ""
    """PCI address, as NVML writes it."""
    busy: int = -1
    """Percent of the last sample period in which a kernel ran; -1 if NVML gives no figure."""
    power_mw: int = -1
    limit_mw: int = -1
    """Power draw and power limit in milliwatts; -1 if NVML gives no figure."""
    free: int | None = None
    """Bytes that may still be taken: without what the driver keeps; None if NVML gives no figure."""

    @property
    def waits(self) -> str:
        """As text, if the GPU is busy but draws little power, as when a kernel waits for another rank; else ''."""
        if self.busy < BUSY_PERCENT or self.power_mw < 0 or self.power_mw > LOW_POWER * self.limit_mw:
            return ""
        return f"GPU {self.index}: {self.busy} % busy at {self.power_mw // 1000} of {self.limit_mw // 1000} W: it waits"

    def bytes_of(self, pid: int) -> int:
        """Bytes that a process uses here. NVML may give pids of another PID namespace: then all bytes in use."""
        mine = [held for owner, held in self.processes if owner == pid]
        return sum(mine) if mine else sum(held for _, held in self.processes) or self.used


@dataclass
class GpuMemory:
    """Keeps one child and queries it; the answer comes later, or never if the driver hangs."""

    indices: Sequence[int]
    answer: dict[int, GpuUse] | None = None
    """Newest answer; None before the first one and after NVML failed."""
    error: str = ""
    places: dict[int, str] = field(default_factory=dict)
    """PCI addresses of all GPUs that have ever answered: a lost GPU no longer reports its own."""
    uuids: dict[str, int] = field(default_factory=dict)
    """Indices by UUID of all GPUs of the machine that answer."""
    answered_at: float = 0.0
    _answered: bool = False
    """The child that runs has answered once."""
    _child: LineChild = field(init=False)

    def __post_init__(self) -> None:
        self._child = LineChild(("gpus", *map(str, self.indices)))

    @property
    def helpers(self) -> set[int]:
        """Process ids of the children that may still exist; they don't belong to the engine."""
        return self._child.helpers

    def fileno(self) -> int:
        """Readable when an answer has arrived; -1 where no child runs."""
        return self._child.fileno()

    def ask(self, now: float) -> None:
        """Send a query unless one is open. A child past its deadline is replaced once it has ended."""
        if (asked := self._child.asked_at) is not None:
            if now - asked < (ANSWER_S if self._answered else FIRST_ANSWER_S):
                return
            self.close()
            self.answer, self.error = None, "NVML does not respond; the driver may hang"
        try:
            self._child.ask(now)
        except OSError as error:  # too many processes, or no memory for one: what serves goes on
            self.answer, self.error = None, f"NVML can't be queried: {error.strerror}"

    def take(self, now: float) -> bool:
        """Read the child's answers; True if there is a new one."""
        if not self._child.runs:
            return False
        answer = self._child.read()
        if answer is None:
            self.close()
            self.answer, self.error = None, "the process that queries NVML ended"
            return True
        for raw in answer:
            self._understand(raw, now)
        return bool(answer)

    def wait(self, deadline_s: float) -> bool:
        """Query and wait for the answer; False if none came in time."""
        end = time.monotonic() + deadline_s
        self.ask(time.monotonic())
        while self._child.runs and time.monotonic() < end:
            select.select([self._child], [], [], 0.1)
            if self.take(time.monotonic()):
                return True
        return False

    def in_use(self) -> list[GpuUse]:
        """The GPUs that are not idle by the newest answer."""
        uses = ((self.answer or {}).get(index) for index in self.indices)
        return [use for use in uses if use is not None and (use.processes or use.used > IDLE_BYTES)]

    def least_free(self) -> int | None:
        """Bytes that are free on the fullest GPU by the newest answer; None where it has no figures."""
        free = [use.free for use in (self.answer or {}).values() if use.free is not None]
        return min(free, default=None)

    def waiting(self) -> tuple[str, ...]:
        """The GPUs that are busy at low power, as text."""
        return tuple(filter(None, (use.waits for use in (self.answer or {}).values())))

    def held(self) -> list[str]:
        """The GPUs in use by the newest answer, as text."""
        return [f"GPU {use.index}: {_holders(use)}" for use in self.in_use()]

    def await_free(self, deadline_s: float) -> list[str]:
        """Query until no GPU is in use; returns those that still are at the deadline. Does not wait if NVML has no
        figures."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end and self.wait(end - time.monotonic()) and not self.error and self.in_use():
            time.sleep(FREE_EVERY_S)
        return self.held()

    def close(self) -> None:
        """End the child."""
        self._child.close()
        self._answered = False

    def _understand(self, raw: dict[str, Any], now: float) -> None:
        self._answered, self.answered_at = True, now
        self.error, self.answer, self.uuids = str(raw.get("error") or ""), None, raw.get("indices", self.uuids)
        pairs = list(zip(raw.get("gpus", ()), raw.get("processes", ()), strict=True))
        unknown = [gpu for gpu, processes in pairs if gpu.get("memory_used_bytes") is None or processes is None]
        if unknown:
            why = str(unknown[0].get("error") or "NVML does not tell who uses its memory").rpartition(": ")[2]
            self.error = f"GPU {unknown[0]['index']}: {why}"
        elif not self.error:
            self.answer = {gpu["index"]: _use(gpu, processes) for gpu, processes in pairs}
            self.places |= {use.index: use.place for use in self.answer.values() if use.place}


def _use(gpu: dict[str, Any], processes: list[list[int]]) -> GpuUse:
    load = gpu["utilization_percent"], gpu["power_mw"], gpu["power_limit_mw"]
    held = tuple((pid, held) for pid, held in processes)
    place, shown = gpu["pci_bus_id"] or "", load if None not in load else ()
    use = GpuUse(gpu["index"], gpu["memory_used_bytes"], held, place, *shown)
    return replace(use, free=gpu.get("memory_free_bytes"))


def _holders(use: GpuUse) -> str:
    gib = use.used / (1 << 30)
    if not use.processes:
        return f"{gib:.1f} GiB are in use by a process that NVML does not show"
    pids = ", ".join(f"{pid} ({supervision.title(pid)[:80] or 'gone'})" for pid, _ in use.processes)
    return f"{gib:.1f} GiB are in use by process {pids}"
