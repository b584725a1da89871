"""What a start shows of time: bytes, rate and time left of each node, from its pace and the last start's record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.gang.start_time import PhaseTimes, TimeLeft, left_s, reading
from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.gang_state import GangState
from orchestrator.model.plan import GangPlan, Plan
from orchestrator.records.documents import keep_start, last_start


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
