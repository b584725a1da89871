"""`up --gate`: whether a gang that was changed is as good as it was: its answers, alone and among others, and its speed
at the loads that the old plan was measured at. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.bench.verdict import FEWEST_RUNS, mean_of, noise_of
from orchestrator.golden.questions import Graded
from orchestrator.planning.plan_file import SettingChange, summary

SPEED = "output_tok_s"
WITHIN = 0.05
"""Share of the old speed that a new plan may lose."""
GATE_FAILED = "GATE-FAILED"
_VERDICTS = {True: "passed", False: "not passed", None: "not compared"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePart:
    """One thing that was measured. passed: None where the old plan has nothing to compare with; old, new: as shown"""

    name: str
    old: str
    new: str
    passed: bool | None = True
    why: str = ""

    @property
    def verdict(self) -> str:
        """In words."""
        return _VERDICTS[self.passed]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """Both plans side by side. old, new: their ids; changes: settings that differ; cause, fix: of a plan that was
    refused before it could be judged, whole"""

    gang: str
    old: str
    new: str
    changes: tuple[SettingChange, ...]
    parts: tuple[GatePart, ...]
    cause: str = ""
    fix: str = ""

    @property
    def passed(self) -> bool:
        """Nothing is worse; what could not be compared is said, and decides nothing."""
        return all(part.passed is not False for part in self.parts)

    @property
    def why(self) -> str:
        """What is worse; '' where nothing is."""
        return "; ".join(f"{part.name}: {part.why}" for part in self.parts if part.passed is False)

    @property
    def verdict(self) -> str:
        """Of all parts, in words."""
        return _VERDICTS[self.passed]

    def lines(self) -> Iterator[str]:
        """The page."""
        yield f"gate of {self.gang}: {self.verdict}"
        yield f"  changed: {summary(self.changes)}"
        rows = [("", f"old {self.old}", f"new {self.new}", "")]
        rows += [(part.name, part.old, part.new, part.why or part.verdict) for part in self.parts]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        for row in rows:
            cells = (text.ljust(width) for text, width in zip(row, widths, strict=False))
            yield f"  {'  '.join(cells)}  {row[3]}".rstrip()

    def as_json(self) -> dict[str, Any]:
        """As `history` has it."""
        return {
            "verdict": self.verdict,
            "old": self.old,
            "new": self.new,
            "why": self.why,
            "page": list(self.lines()),
        }


def start_part(where: str, cause: str) -> GatePart:
    """Of a plan that was refused before anything was asked of it. cause: only its first line is told"""
    return GatePart(
        name="start", old="serves", new="refused", passed=False, why=f"{where}: {cause.partition(chr(10))[0]}"
    )


def kernels_part(right: Sequence[bool], nodes: Sequence[str]) -> GatePart:
    """Of those that were tried: one that could not be run is unknown, and never fine. None of them is wrong."""
    unknown = len(right) - sum(right)
    return GatePart(
        name="kernels",
        old="-",
        new=f"{sum(right)} of {len(right)} right on {', '.join(nodes)}",
        passed=None if unknown or not right else True,
        why=f"{unknown} could not be run: `stack check` says why" if unknown else "",
    )


def questions_part(old: Graded, new: Graded) -> GatePart:
    """Not fewer right than the old plan's."""
    why = new.fewer_than(old)
    return GatePart(name="questions", old=old.words, new=new.words, passed=not why, why=why)


@dataclass(frozen=True, slots=True)
class OldSpeed:
    """The newest benchmark of the old plan at one load. runs: figures of each run"""

    load: Mapping[str, int]
    runs: tuple[Mapping[str, float], ...]

    @property
    def name(self) -> str:
        """As a part of the report."""
        return f"speed, {self.load['concurrency']} at once"


def old_speeds(records: Sequence[Mapping[str, Any]], plan_id: str, gang: str, dataset: str) -> tuple[OldSpeed, ...]:
    """What this gang measured under this plan with our own text, the newest of each load. records: oldest first"""
    newest: dict[tuple[tuple[str, int], ...], OldSpeed] = {}
    for record in records:
        mine = (record["gang"], record.get("plan_id"), record["dataset"]) == (gang, plan_id, dataset)
        runs = tuple(record.get("runs") or (record["serving"],))
        if mine and SPEED in mean_of(runs):
            newest[tuple(sorted(record["load"].items()))] = OldSpeed(record["load"], runs)
    return tuple(newest.values())


def speed_bounds(old: OldSpeed, runs: Sequence[Mapping[str, float]]) -> tuple[float, float]:
    """Least and most share of the old speed that the noise of both leaves for the new one."""
    was, now = mean_of(old.runs)[SPEED], mean_of(runs)[SPEED]
    was_noise, now_noise = noise_of(SPEED, old.runs), noise_of(SPEED, runs)
    least = now * max(0.0, 1 - now_noise) / (was * (1 + was_noise))
    most = now * (1 + now_noise) / (was * max(0.01, 1 - was_noise))
    return least, most


def decided(old: OldSpeed, runs: Sequence[Mapping[str, float]], within: float) -> bool:
    """More runs would change nothing."""
    if len(runs) < FEWEST_RUNS:
        return False
    least, most = speed_bounds(old, runs)
    return least >= 1 - within or most < 1 - within


def speed_part(old: OldSpeed, runs: Sequence[Mapping[str, float]], within: float) -> GatePart:
    """Slower by more than `within`, and by more than the noise of both plans' runs explains."""
    was, now = mean_of(old.runs)[SPEED], mean_of(runs)[SPEED]
    _, most = speed_bounds(old, runs)
    slow, below = most < 1 - within, now / was < 1 - within
    why = ""
    if slow:
        why = f"{1 - now / was:.0%} slower, and the noise of the runs explains {max(0.0, most - now / was):.0%} of it"
    elif below:
        why = f"{1 - now / was:.0%} slower, which the noise of the runs may explain"
    return GatePart(name=old.name, old=f"{was:.1f} tok/s", new=f"{now:.1f} tok/s", passed=not slow, why=why)
