"""The expected downtime of a restart. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.gang.view import GangView


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
