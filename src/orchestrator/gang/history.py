"""The runs of a gang that its nodes have kept: who started each, and how it ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.gang.last_failure import last_verdict
from orchestrator.gang.pace import StartDuration, took
from orchestrator.gang.view import view
from orchestrator.model.gang_state import GangState
from orchestrator.protocol.report import Cause, Report

_OVER = (GangState.ABSENT, GangState.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """One run. started, ended: epoch seconds by the clock of the first node that has kept it; ended: 0.0 while it runs.

    by, command: of the holder of the gang's lock at the time, '' if nothing recorded it
    end: stopped or failed, or the state of a run that continues
    """

    gang: str
    run_id: str
    plan_id: str
    model: str
    started: float
    ended: float
    by: str
    command: str
    end: str
    cause: Cause | None = None
    start: StartDuration | None = None
    """Duration of its start; None if it never became ready, or an older release started it."""


def past_runs(
    gang: str, kept: Mapping[str, Sequence[Report]], audit: Mapping[str, Sequence[Mapping[str, Any]]]
) -> tuple[PastRun, ...]:
    """Newest first. kept, audit: by node name, in node-rank order."""
    found: dict[str, PastRun] = {}
    for node, reports in kept.items():
        for report in reports:
            if report.run_id not in found:
                found[report.run_id] = _past(gang, report, kept, audit.get(node, ()))
    return tuple(sorted(found.values(), key=lambda run: run.started, reverse=True))


def _past(
    gang: str,
    report: Report,
    kept: Mapping[str, Sequence[Report]],
    audit: Sequence[Mapping[str, Any]],
) -> PastRun:
    of_run = {
        name: next((one for one in reports if one.run_id == report.run_id), None) for name, reports in kept.items()
    }
    seen = view(gang, of_run)
    verdict = last_verdict(gang, {name: [one] if one is not None else [] for name, one in of_run.items()})
    over = seen.state in _OVER
    holder = _holder(audit, report.started_at)
    return PastRun(
        gang=gang,
        run_id=report.run_id,
        plan_id=report.plan_id,
        model=report.model,
        started=report.started_at,
        ended=report.updated_at if over else 0.0,
        by=f"{holder.get('who')}@{holder.get('host')}" if holder else "",
        command=str(holder.get("command") or ""),
        end="failed" if verdict is not None else "stopped" if over else seen.state.value,
        cause=verdict.cause if verdict is not None else None,
        start=took(one.began for one in of_run.values() if one is not None),
    )


def _holder(audit: Sequence[Mapping[str, Any]], started: float) -> Mapping[str, Any]:
    """The audit line of the last lock holder before this run was staged; both times are by the same node's clock."""
    found: Mapping[str, Any] = {}
    for line in audit:
        at = line.get("at")
        if line.get("action") == "begins" and isinstance(at, (int, float)) and at <= started:
            found = line
    return found


def plan_before(runs: Sequence[PastRun], plan_id: str) -> PastRun | None:
    """The newest run of a different plan; None if none is kept."""
    return next((run for run in runs if run.plan_id != plan_id), None)
