"""How long a start still takes, by its pace and by the record of the last one; the downtime of a restart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from orchestrator.gang.pace import PHASES, slowest
from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.gang_state import GangState
from orchestrator.model.plan import GangPlan, Plan, Seconds
from orchestrator.planning.start_estimate import span
from orchestrator.records.documents import keep_start, last_start

WEIGHTS = "weights"
_TELLING = 3
"""Shards after which the pace can be used."""


def left_words(
    node: NodeView, model_bytes: int, last: Mapping[str, float], phases: Mapping[str, Seconds] = MappingProxyType({})
) -> str:
    """How far a node is with its weight files, of which each node reads all, and how long its start still takes:
    '161 of 640 GB, 2.1 GB/s, about 5 min left'; '' where nothing is known. last: when each phase of the last start
    began; phases: calculated, for a first start, which has no last one: '3 to 5 min left, calculated'."""
    words, pace = _reading(node, model_bytes)
    left = "" if "ready" in last else _calculated(node, phases, pace)
    return ", ".join(filter(None, (*words, left or _as_last_time(node, last, pace))))


def _reading(node: NodeView, model_bytes: int) -> tuple[list[str], float | None]:
    """How far it is with its weight files, and the seconds that they still take at its pace; None while that tells
    little."""
    phase = node.phase
    if phase.name != WEIGHTS or not phase.of or not model_bytes:
        return [], None
    done = int(model_bytes * phase.step / phase.of)
    words = [f"{done / 1e9:.1f} of {model_bytes / 1e9:.1f} GB"]
    if node.phase_s <= 0 or phase.step < _TELLING:
        return words, None
    rate = done / node.phase_s
    return [*words, f"{rate / 1e9:.2f} GB/s"], (model_bytes - done) / rate


def _as_last_time(node: NodeView, last: Mapping[str, float], pace: float | None) -> str:
    """By the last start; of one that never was only what the node's pace says."""
    ready, seconds = last.get("ready"), pace
    if pace is not None and ready is not None:
        after = next((last[name] for name in PHASES[PHASES.index(WEIGHTS) + 1 :] if name in last), ready)
        seconds = pace + max(0.0, ready - after)
    elif ready is not None and node.phase.name in last:
        seconds = max(0.0, ready - last[node.phase.name] - node.phase_s)
    if seconds is None or seconds < 1:
        return ""
    minutes = round(seconds / 60)
    return f"about {minutes} min left" if minutes > 1 else f"about {seconds:.0f} s left"


def _calculated(node: NodeView, phases: Mapping[str, Seconds], pace: float | None) -> str:
    """'' where a phase that is to come was not calculated; a phase that outlasts its calculation leaves none of it.
    pace: what its weights still take, by what it has read"""
    if node.phase.name not in phases or "graphs" not in phases:
        return ""
    over = node.phase_s - phases[node.phase.name][1]
    if pace is None and over >= 1:
        return f"{over:.0f} s longer than calculated"
    names = list(phases)
    later = [phases[name] for name in names[names.index(node.phase.name) + 1 :]]
    least, most = (max(0.0, seconds - node.phase_s) for seconds in phases[node.phase.name])
    if pace is not None:
        least = most = pace
    least, most = least + sum(part for part, _ in later), most + sum(part for _, part in later)
    return f"{span((least, most))} left, calculated" if most >= 1 else ""


def furthest_behind(nodes: Sequence[NodeView]) -> NodeView | None:
    """The node that a start waits for; of several in one phase one that tells how far it is. None where none loads."""
    loading = [node for node in nodes if node.alive and node.phase.name in PHASES]
    return min(loading, key=_place, default=None)


def _place(node: NodeView) -> tuple[int, bool, float]:
    phase = node.phase
    return PHASES.index(phase.name), not phase.of, phase.step / phase.of if phase.of else 0.0


@dataclass
class StartClock:
    """Told of the plan and of every look; keeps the record of a start that came to ready."""

    _plans: dict[str, GangPlan] = field(default_factory=dict)
    _last: dict[str, dict[str, float]] = field(default_factory=dict)
    _rising: set[tuple[str, str]] = field(default_factory=set)
    """Gangs and their runs that were seen to rise."""

    def planned(self, plan: Plan) -> None:
        """What is about to start."""
        for gang in plan.gangs:
            self._plans[gang.name] = gang
            self._last[gang.name] = last_start(gang.name, gang.model, gang.stack)

    def seen(self, views: Sequence[GangView]) -> None:
        """Keep when the phases began of a gang that was seen to rise and is ready."""
        for view in views:
            run = (view.name, view.run_id)
            if view.state.loads:
                self._rising.add(run)
            elif view.state is GangState.READY and run in self._rising:
                self._rising.remove(run)
                if "ready" in (began := slowest(node.began for node in view.nodes)):
                    keep_start(view.name, view.model, view.stack, began)

    def left(self, gang: str, node: NodeView) -> str:
        """What is left of one node's start, as text."""
        plan = self._plans.get(gang)
        if plan is None:
            return left_words(node, 0, self._last.get(gang, {}))
        phases = plan.start.first if plan.start else {}
        return left_words(node, plan.model_bytes, self._last.get(gang, {}), phases)


def downtime_words(view: GangView, drain_s: float) -> str:
    """How long a restart will keep the gang from serving, as one sentence, by its newest start: a ready node reports
    when it was staged and became ready. drain_s: the longest wait for running requests."""
    if not view.service_healthy:
        return f"{view.name} is not serving now"
    drain = f"running requests get up to {drain_s:.0f} s to finish"
    starts = [node.started_s - node.phase_s for node in view.nodes if node.phase.name == "ready"]
    if not starts:
        return f"{view.name} will not serve until it has restarted; how long that takes is not known; {drain}"
    start_s = max(starts)
    about = f"{max(5, round(start_s / 5) * 5)} s" if start_s < 90 else f"{round(start_s / 60)} min"
    return f"{view.name} will not serve for about {about} (its last start took {start_s:.0f} s); {drain} before that"
