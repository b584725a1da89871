"""The runs of a gang that its nodes have kept: who started each, and how it ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.gang.pace import StartDuration, took
from orchestrator.gang.view import Answer, GangView, view
from orchestrator.model.gang_state import GangState
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.report import AgentState, Cause, Report

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
    gate: Mapping[str, Any] | None = None
    """Verdict of `up --gate` on it (records/gates.py); None where this machine judged no such run."""


def past_runs(
    gang: str, kept: Mapping[str, Sequence[Report]], audit: Mapping[str, Sequence[Mapping[str, Any]]]
) -> tuple[PastRun, ...]:
    """Newest first. kept, audit: by node name, in node-rank order."""
    pairs = [(node, report) for node, reports in kept.items() for report in reports]
    first = {report.run_id: (node, report) for node, report in reversed(pairs)}
    runs = [_past(gang, report, kept, audit.get(node, ())) for node, report in first.values()]
    return tuple(sorted(runs, key=lambda run: run.started, reverse=True))


def _report_of(run_id: str, reports: Sequence[Report]) -> Report | None:
    return next((past for past in reports if past.run_id == run_id), None)


def _past(
    gang: str, report: Report, kept: Mapping[str, Sequence[Report]], audit: Sequence[Mapping[str, Any]]
) -> PastRun:
    of_run = {name: _report_of(report.run_id, reports) for name, reports in kept.items()}
    seen = view(gang, of_run)
    verdict = last_verdict(gang, {name: [past] if past is not None else [] for name, past in of_run.items()})
    over = seen.state in _OVER
    holder = _holder(audit, report.started_at)
    ended = "stopped" if over else seen.state.value
    return PastRun(
        gang=gang,
        run_id=report.run_id,
        plan_id=report.plan_id,
        model=report.model,
        started=report.started_at,
        ended=report.updated_at if over else 0.0,
        by=f"{holder.get('who')}@{holder.get('host')}" if holder else "",
        command=str(holder.get("command") or ""),
        end="failed" if verdict is not None else ended,
        cause=verdict.cause if verdict is not None else None,
        start=took(past.began for past in of_run.values() if past is not None),
    )


def _holder(audit: Sequence[Mapping[str, Any]], started: float) -> Mapping[str, Any]:
    """The audit line of the last lock holder before this run was staged; both times are by the same node's clock."""
    begun = [(line.get("at"), line) for line in audit if line.get("action") == "begins"]
    held = [line for at, line in begun if isinstance(at, (int, float)) and at <= started]
    return held[-1] if held else {}


def plan_before(runs: Sequence[PastRun], plan_id: str) -> PastRun | None:
    """The newest run of a different plan, but for one that failed before it was ready; None if none is kept."""
    came_up = (run for run in runs if run.start is not None or run.end != "failed")
    return next((run for run in came_up if run.plan_id != plan_id), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureVerdict:
    """Why a run of a gang ended.

    secondary: the errors that followed on other nodes
    ago_s:     seconds since the cause was seen, by that node's own clock; None if the node did not answer
    newest:    no later run has begun since
    """

    gang: str
    run_id: str
    plan_id: str
    model: str
    stack: str
    cause: Cause
    secondary: tuple[Cause, ...]
    ago_s: float | None
    newest: bool


Kept = Sequence[Report] | DeployError
"""The reports of the runs that one node has kept, or why the node could not be queried."""


def last_verdict(gang: str, kept: Mapping[str, Kept], run: str = "") -> FailureVerdict | None:
    """The verdict on the newest run that failed, or on this one; None if no kept run did.

    kept: by node name, in node-rank order
    """
    for place, run_id in enumerate(runs_of(kept)):
        answers = {name: _of_run(reports, run_id) for name, reports in kept.items()}
        if run in ("", run_id) and (verdict := _verdict(gang, run_id, answers, newest=place == 0)):
            return verdict
    return None


def of_now(gang: str, kept: Mapping[str, Kept]) -> GangView:
    """The gang as its nodes have it now, whatever failed before."""
    return view(
        gang,
        {name: reports if isinstance(reports, DeployError) else _newest(reports) for name, reports in kept.items()},
    )


def _newest(reports: Sequence[Report]) -> Report | None:
    return max(reports, key=lambda report: (report.alive, report.started_at), default=None)


def runs_of(kept: Mapping[str, Kept]) -> list[str]:
    """Run ids, newest staging first (by the node whose clock gives the latest time)."""
    staged: dict[str, float] = {}
    for reports in kept.values():
        for report in () if isinstance(reports, DeployError) else reports:
            staged[report.run_id] = max(staged.get(report.run_id, 0.0), report.started_at)
    return sorted(staged, key=lambda run_id: staged[run_id], reverse=True)


def _of_run(reports: Kept, run_id: str) -> Answer:
    if isinstance(reports, DeployError):
        return reports
    return next((_before_it_was_cleared(report) for report in reports if report.run_id == run_id), None)


def _before_it_was_cleared(report: Report) -> Report:
    """`down` after a failure sets a node to stopped but keeps its cause, which is what matters here."""
    failed = report.cause is not None or report.verdict is not None
    return replace(report, state=AgentState.FAILED) if failed and not report.alive else report


def _clock_of(cause: Cause, answers: Mapping[str, Answer]) -> float | None:
    """The time now by the clock that the cause's own time is from: that of the node that wrote it down as its own; of
    what the leader alone saw of another node, the leader's. None where that node did not answer."""
    origin = answers.get(cause.node)
    reports = [answer for answer in answers.values() if isinstance(answer, Report)]
    leader = next((report for report in reports if report.node_rank == 0 and report.verdict == cause), None)
    if isinstance(origin, Report) and (origin.cause == cause or leader is None):
        return origin.now
    return leader.now if leader is not None and isinstance(origin, Report) else None


def _verdict(gang: str, run_id: str, answers: Mapping[str, Answer], *, newest: bool) -> FailureVerdict | None:
    seen = view(gang, answers)
    if seen.cause is None or seen.state.was_ready:
        return None
    clock = _clock_of(seen.cause, answers)
    return FailureVerdict(
        gang=gang,
        run_id=run_id,
        plan_id=seen.plan_id,
        model=seen.model,
        stack=seen.stack,
        cause=seen.cause,
        secondary=seen.secondary,
        ago_s=max(0.0, clock - seen.cause.at) if clock is not None and seen.cause.at else None,
        newest=newest,
    )
