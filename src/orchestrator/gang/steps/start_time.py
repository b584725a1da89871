"""What a start shows of time: bytes, rate and time left of each node, from its pace and the last start's record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.gang.pace import PHASES
from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.gang_state import GangState
from orchestrator.model.plan import GangPlan, Plan
from orchestrator.records.documents import keep_start, last_start

WEIGHTS = "weights"
_TELLING = 3
"""Shards after which the pace can be used."""


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """How far a node is with its weight files. Each node reads all of them. rate: bytes per second, 0 if unknown"""

    done: int
    total: int
    rate: float


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """reading: None where a node reads no weights now. seconds: until it is ready, None where nothing tells."""

    reading: ReadProgress | None
    seconds: float | None


def reading(node: NodeView, model_bytes: int) -> ReadProgress | None:
    """None if it reads no weights now, or their size is unknown."""
    phase = node.phase
    if phase.name != WEIGHTS or not phase.of or not model_bytes:
        return None
    done = int(model_bytes * phase.step / phase.of)
    return ReadProgress(done, model_bytes, done / node.phase_s if node.phase_s > 0 and phase.step >= _TELLING else 0.0)


def left_s(node: NodeView, now: ReadProgress | None, last: Mapping[str, float]) -> float | None:
    """Seconds until this node is ready, None if unknown. last: as `PhaseTimes.began`"""
    place = PHASES.index(node.phase.name) if node.phase.name in PHASES else -1
    after = [name for name in PHASES[place + 1 :] if name in last] if place >= 0 else []
    ready = last.get("ready")
    if now is not None and now.rate:
        rest = ready - last[after[0]] if ready is not None and after else 0.0
        return (now.total - now.done) / now.rate + max(0.0, rest)
    if ready is None or node.phase.name not in last:
        return None
    return max(0.0, ready - last[node.phase.name] - node.phase_s)


@dataclass
class PhaseTimes:
    """When the phases of one start began, in seconds since staging; the slowest node counts."""

    began: dict[str, float] = field(default_factory=dict)

    def note(self, node: NodeView) -> None:
        """Add what a look at a node shows."""
        if node.alive and node.phase.name in PHASES and node.started_s:
            at = max(0.0, node.started_s - node.phase_s)
            self.began[node.phase.name] = max(at, self.began.get(node.phase.name, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Downtime:
    """start_s: duration of the newest start, None if unknown; drain_s: the longest wait for running requests."""

    gang: str
    serving: bool
    start_s: float | None
    drain_s: float

    @property
    def words(self) -> str:
        """One sentence for the operator."""
        if not self.serving:
            return f"{self.gang} is not serving now"
        drain = f"running requests get up to {self.drain_s:.0f} s to finish"
        if self.start_s is None:
            return f"{self.gang} will not serve until it has restarted; how long that takes is not known; {drain}"
        return (
            f"{self.gang} will not serve for about {_rounded(self.start_s)} (its last start took {self.start_s:.0f}"
            f" s); {drain} before that"
        )


def expected_downtime(view: GangView, drain_s: float) -> Downtime:
    """From the gang's current state: a ready node reports when it was staged and when it became ready."""
    starts = [node.started_s - node.phase_s for node in view.nodes if node.phase.name == "ready"]
    return Downtime(
        gang=view.name, serving=bool(view.service_healthy), start_s=max(starts, default=None), drain_s=drain_s
    )


def _rounded(seconds: float) -> str:
    if seconds < 90:
        return f"{max(5, round(seconds / 5) * 5)} s"
    return f"{round(seconds / 60)} min"


@dataclass
class StartClock:
    """Told of the plan and of every look; keeps the record of a start that came to ready."""

    _plans: dict[str, GangPlan] = field(default_factory=dict)
    _last: dict[str, dict[str, float]] = field(default_factory=dict)
    _times: dict[tuple[str, str], PhaseTimes] = field(default_factory=dict)
    _kept: set[tuple[str, str]] = field(default_factory=set)

    def planned(self, plan: Plan) -> None:
        """What is about to start."""
        for gang in plan.gangs:
            self._plans[gang.name] = gang
            self._last[gang.name] = last_start(gang.name, gang.model, gang.stack)

    def seen(self, views: Sequence[GangView]) -> None:
        """Note when phases began; keep them once a gang that was seen to rise is ready."""
        for view in views:
            key = (view.name, view.run_id)
            if view.state.loads:
                for node in view.nodes:
                    self._times.setdefault(key, PhaseTimes()).note(node)
            elif view.state == GangState.READY and key in self._times and key not in self._kept:
                self._kept.add(key)
                for node in view.nodes:
                    self._times[key].note(node)
                if "ready" in self._times[key].began:
                    keep_start(view.name, view.model, view.stack, self._times[key].began)

    def left(self, gang: str, node: NodeView) -> TimeLeft:
        """Of one node."""
        plan = self._plans.get(gang)
        now = reading(node, plan.model_bytes if plan else 0)
        return TimeLeft(now, left_s(node, now, self._last.get(gang, {})))
