"""What comes next: a sweep's steps from what is measured and what runs on the gang, whatever happened before. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from orchestrator.model.measured import (
    BEFORE,
    CandidateResult,
    CandidateState,
    SweepRecord,
    best,
    speed,
)


class SweepStepKind(Enum):
    """REFUSE: somebody else's plan runs, and nobody allowed to stop it; STOP: what runs; TRY: the network, in the
    engine's place; MEASURE: start the candidate,
    or go on with it, and measure; KEEP: serve the best; RETURN: serve what served before; DONE: nothing is left"""

    REFUSE = "refuse"
    STOP = "stop"
    TRY = "try"
    MEASURE = "measure"
    KEEP = "keep"
    RETURN = "return"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class SweepStep:
    """result: whose turn it is, of MEASURE and KEEP"""

    do: SweepStepKind
    result: CandidateResult | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """What runs on the gang. plan_id: '' for nothing; serves: it answers requests"""

    plan_id: str = ""
    serves: bool = False


def next_step(
    record: SweepRecord, running: Running, *, keep_best: bool, replaces: bool, tries: bool = False
) -> SweepStep:
    """From what is kept and what runs alone, so that a sweep that was killed goes on at any point.

    replaces: what somebody else started may be stopped; tries: a trial of the network is still to come
    """
    ours = not running.plan_id or running.plan_id in record.started
    turn = next((result for result in record.results if result.waits), None)
    if turn is None and not tries:
        return _end(record, running, ours=ours, keep_best=keep_best, replaces=replaces)
    if not ours:
        return SweepStep(SweepStepKind.STOP if replaces else SweepStepKind.REFUSE)
    wanted = "" if tries or turn is None else turn.plan_id
    if running.plan_id not in ("", wanted):
        return SweepStep(SweepStepKind.STOP)
    return SweepStep(SweepStepKind.TRY) if tries else SweepStep(SweepStepKind.MEASURE, turn)


def _end(record: SweepRecord, running: Running, *, ours: bool, keep_best: bool, replaces: bool) -> SweepStep:
    """Once nothing waits: what the gang is left with."""
    if keep_best and (winner := overall_best(record)) is not None:
        return _ends_with(winner.plan_id, SweepStep(SweepStepKind.KEEP, winner), running, free=ours or replaces)
    if not ours and running.plan_id != record.before_plan:  # somebody has started it since
        return SweepStep(SweepStepKind.DONE)
    if record.before is None:
        return SweepStep(SweepStepKind.STOP if running.plan_id else SweepStepKind.DONE)
    return _ends_with(record.before_plan, SweepStep(SweepStepKind.RETURN), running, free=True)


def _ends_with(plan_id: str, step: SweepStep, running: Running, *, free: bool) -> SweepStep:
    """Have just this plan serve."""
    if running.plan_id == plan_id and running.serves:
        return SweepStep(SweepStepKind.DONE)
    if running.plan_id in ("", plan_id):
        return step
    return SweepStep(SweepStepKind.STOP if free else SweepStepKind.REFUSE)


_OVER = (CandidateState.MEASURED, CandidateState.FAILED)


def merged(candidates: Iterable[CandidateResult], kept: SweepRecord | None) -> tuple[CandidateResult, ...]:
    """These candidates with what an earlier call has measured of the very same plans, and then what it has measured
    beside them, or what failed there. Nothing is measured twice, and nothing that changed since counts."""
    known = {result.candidate.id: result for result in kept.results} if kept is not None else {}
    results = [_known(result, known.pop(result.candidate.id, None)) for result in candidates]
    return (*results, *(old for old in known.values() if old.state in _OVER))


def _known(result: CandidateResult, old: CandidateResult | None) -> CandidateResult:
    if old is None or not result.waits or old.plan_id != result.plan_id:
        return result
    if old.state in _OVER:
        return replace(old, candidate=result.candidate, kv_tokens=result.kv_tokens)
    return replace(result, points=old.points, start_s=old.start_s, seconds=old.seconds, stand_in=old.stand_in)


def with_result(record: SweepRecord, result: CandidateResult) -> SweepRecord:
    """The record with what became of one candidate."""
    results = tuple(result if old.candidate.id == result.candidate.id else old for old in record.results)
    return replace(record, results=results)


def overall_best(record: SweepRecord) -> CandidateResult | None:
    """The candidate that is nearest to the fastest at every load, by the mean of its shares; None where none was
    measured."""
    measured = [result for result in record.results if result.state is CandidateState.MEASURED]
    top = {load: winner for load in record.load.requests if (winner := best(measured, load)) is not None}

    def share(result: CandidateResult) -> float:
        return sum(speed(result, load) / (speed(winner, load) or 1.0) for load, winner in top.items())

    return max(measured, key=share, default=None)


def best_by_load(record: SweepRecord) -> Mapping[str, str]:
    """Ids of the fastest candidate, by requests at once as text."""
    winners = ((load, best(record.results, load)) for load in record.load.requests)
    return {str(load): winner.candidate.id for load, winner in winners if winner is not None}


def ended_with(record: SweepRecord, running: Running, *, keep_best: bool) -> str:
    """What `SweepRecord.kept` says of the gang as it is left."""
    if not running.plan_id:
        return ""
    mine = [result.candidate.id for result in record.results if result.plan_id == running.plan_id]
    return next((name for name in mine if keep_best or name == record.kept), BEFORE)
