"""The last failure of a gang, from what its nodes have kept, even after a `down` or a restart. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.gang.view import Answer, GangView, view
from orchestrator.model.errors import DeployError
from orchestrator.protocol.report import AgentState, Cause, Report


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
        if run not in ("", run_id):
            continue
        answers: dict[str, Answer] = {name: _of_run(told, run_id) for name, told in kept.items()}
        found = _verdict(gang, run_id, answers, newest=place == 0)
        if found is not None:
            return found
    return None


def of_now(gang: str, kept: Mapping[str, Kept]) -> GangView:
    """The gang as its nodes have it now, whatever failed before."""
    return view(gang, {name: told if isinstance(told, DeployError) else _newest(told) for name, told in kept.items()})


def _newest(told: Sequence[Report]) -> Report | None:
    return max(told, key=lambda report: (report.alive, report.started_at), default=None)


def runs_of(kept: Mapping[str, Kept]) -> list[str]:
    """Run ids, newest staging first (by the node whose clock gives the latest time)."""
    staged: dict[str, float] = {}
    for told in kept.values():
        for report in () if isinstance(told, DeployError) else told:
            staged[report.run_id] = max(staged.get(report.run_id, 0.0), report.started_at)
    return sorted(staged, key=lambda run_id: staged[run_id], reverse=True)


def _of_run(told: Kept, run_id: str) -> Answer:
    if isinstance(told, DeployError):
        return told
    return next((_before_it_was_cleared(report) for report in told if report.run_id == run_id), None)


def _before_it_was_cleared(report: Report) -> Report:
    """`down` after a failure sets a node to stopped but keeps its cause, which is what matters here."""
    failed = report.cause is not None or report.verdict is not None
    return replace(report, state=AgentState.FAILED) if failed and not report.alive else report


def _verdict(gang: str, run_id: str, answers: Mapping[str, Answer], *, newest: bool) -> FailureVerdict | None:
    seen = view(gang, answers)
    if seen.cause is None or seen.state.was_ready:
        return None
    origin = answers.get(seen.cause.node)
    clock = origin.now if isinstance(origin, Report) else None
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
