"""How far each node of a starting gang is, which is behind, and when that is too far; how long a start took. Pure.

A phase's deadline depends on the model: reading 640 GB from a cold disk takes an hour, and is no fault. A node whose
counter still moves is never late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from orchestrator.protocol.report import Cause, Phase, Report

PHASES = ("rendezvous", "nccl", "weights", "kv-cache", "graphs", "warm-up", "ready")
"""Phases of every engine, in order (the dialects' patterns use these names)."""

STALL_S = 300.0
"""A phase with a counter is not late if the counter has moved within this time."""
_NAMED = 3
"""With more nodes than this, the number is shown instead of the names."""


def progress(reports: Sequence[Report]) -> str:
    """'node2 is at shard 41 of 163, the others are done', and the engine's own time limit; '' if all are equal."""
    placed = _placed(reports)
    behind = _behind(placed)
    others = [report for report in placed if report not in behind and _place(report) > _place(behind[0])]
    if not behind or not others:
        return ""
    last = next((report.phase for report in behind if not report.phase.of), behind[0].phase)
    nearest = min(others, key=_place).phase
    verb = "is" if len(behind) == 1 else "are"
    words = f"{_names(behind)} {verb} at {_where(last)}, the others are "
    words += "done" if nearest.name != last.name else f"at {nearest.step} or further"
    return "; ".join(filter(None, (words, barrier(placed))))


def barrier(reports: Sequence[Report]) -> str:
    """Time left of the engine's own limit for late loaders, '' if no rank waits for it.

    A rank that has its weights waits this long for the others and no longer; the limit can't be set (sglang 0.5.23:
    UNBALANCED_MODEL_LOADING_TIMEOUT_S).
    """
    limit = max((report.barrier_s for report in reports), default=0.0)
    loading = [report for report in reports if PHASES.index(report.phase.name) <= PHASES.index("weights")]
    waiting = [report.now - report.phase.since for report in reports if report.phase.name == "kv-cache"]
    if not limit or not loading or not waiting:
        return ""
    left = limit - max(waiting)
    words = f"the engine gives up {limit:.0f} s after its first rank has loaded; {max(0.0, left):.0f} s are left"
    return words + _too_slow_words(loading, left)


def _too_slow_words(loading: Sequence[Report], left_s: float) -> str:
    needs = [needed for needed in map(_still_needs_s, loading) if needed is not None]
    if not needs or max(needs) <= left_s:
        return ""
    return f", but {max(needs):.0f} s are needed at this pace: read the weights into the page cache before the start"


def late(reports: Sequence[Report]) -> Cause | None:
    """Why there is no point in waiting longer: the nodes that are behind need longer in their phase than any healthy
    start."""
    for report in _behind(_placed(reports)):
        phase = report.phase
        limit = report.allowed_s.get(phase.name)
        since = report.now - phase.since
        if limit is None or since <= limit or (phase.moved and report.now - phase.moved < STALL_S):
            continue
        return Cause(
            node=report.node,
            signature="PHASE-LATE",
            text=f"at {_where(phase)} for {since:.0f} s; {limit:.0f} s are enough for this model, even on slow"
            " hardware",
            fix="read the log with `l40s-deploy logs --node " + report.node + "`: the last lines show which rank hangs",
            at=report.now,
        )
    return None


def _placed(reports: Sequence[Report]) -> list[Report]:
    return [report for report in reports if report.alive and report.phase.name in PHASES]


def _behind(placed: Sequence[Report]) -> list[Report]:
    """The nodes that are furthest behind. Of SGLang only rank 0 counts, so that a node in the same phase may not tell
    how far it is: it is not behind one that tells."""
    least = min((_place(report)[0] for report in placed), default=None)
    there = [report for report in placed if _place(report)[0] == least]
    telling = [report for report in there if report.phase.of]
    if telling and len(telling) < len(there):
        if len(there) < len(placed):
            return there
        there = telling
    lowest = min(map(_place, there), default=None)
    return [report for report in there if _place(report) == lowest]


def _place(report: Report) -> tuple[int, float]:
    phase = report.phase
    return PHASES.index(phase.name), phase.step / phase.of if phase.of else 0.0


def _still_needs_s(report: Report) -> float | None:
    phase = report.phase
    spent = report.now - phase.since
    if phase.name != "weights" or not phase.of or not phase.step or spent <= 0:
        return None
    return spent / phase.step * (phase.of - phase.step)


def _where(phase: Phase) -> str:
    if not phase.of:
        return phase.name
    unit = "shard" if phase.name == "weights" else phase.name
    return f"{unit} {phase.step} of {phase.of}"


def _names(reports: Sequence[Report]) -> str:
    names = [report.node for report in reports]
    return ", ".join(names) if len(names) <= _NAMED else f"{names[0]} and {len(names) - 1} more"


@dataclass(frozen=True, slots=True)
class StartDuration:
    """Duration of a start that reached ready. seconds: from staging until ready; phases: of each, in order; the slowest
    node counts."""

    seconds: float
    phases: Mapping[str, float]

    @property
    def longest(self) -> str:
        """The phase that took the most time."""
        return max(self.phases, key=lambda name: self.phases[name])

    @property
    def words(self) -> str:
        """'weights 212 s of 260 s'."""
        return f"{self.longest} {self.phases[self.longest]:.0f} s of {self.seconds:.0f} s"

    def as_json(self) -> dict[str, Any]:
        """In the form of `status`, `up` and `history`."""
        return {"seconds": self.seconds, "longest": self.longest, "phases": dict(self.phases)}


def took(began: Iterable[Mapping[str, float]]) -> StartDuration | None:
    """began: for each node; None for a start that did not reach ready, or whose agents did not record it."""
    phases = slowest(began)
    order = [name for name in PHASES if name in phases]
    if PHASES[-1] not in order or len(order) < 2:
        return None
    lasted = {name: round(max(0.0, phases[after] - phases[name]), 1) for name, after in pairwise(order)}
    return StartDuration(phases[PHASES[-1]], lasted)


def slowest(began: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """When each phase began on the node that was the last to reach it."""
    seconds: dict[str, float] = {}
    for node in began:
        for name, at in node.items():
            seconds[name] = max(at, seconds.get(name, 0.0))
    return seconds
