"""What a sweep does next, from what is kept and what runs: the table of states, and whole lives with kills."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.sweep.made import record, result

from orchestrator.model.measured import BEFORE, CandidateState, SweepRecord
from orchestrator.protocol.staging import Asked
from orchestrator.sweep.next_step import (
    Running,
    SweepStepKind,
    best_by_load,
    ended_with,
    merged,
    next_step,
    overall_best,
    with_result,
)

NOTHING = Running()
THEIRS, BEGUN, FAST, SLOW = "plan-theirs", Running("plan-b"), Running("plan-a", True), Running("plan-b", True)
ASKED = Asked(model="m")
OPEN = record(result("a", {1: 9.0, 4: 20.0}), result("b"), started=("plan-a", "plan-b"))
OVER = record(result("a", {1: 9.0, 4: 20.0}), result("b", {1: 5.0, 4: 10.0}), started=("plan-a", "plan-b"))
HAD = replace(OVER, before=ASKED, before_plan=THEIRS)
LEFT = replace(HAD, started=())
"""Once it has begun to serve again, nothing counts as the sweep's own."""


@pytest.mark.parametrize(
    ("kept", "running", "keep_best", "replaces", "does"),
    [
        (OPEN, NOTHING, False, False, "measure"),
        (OPEN, Running("plan-b"), False, False, "measure"),
        (OPEN, FAST, False, False, "stop"),
        (OPEN, Running(THEIRS, True), False, False, "refuse"),
        (OPEN, Running(THEIRS), False, False, "refuse"),
        (OPEN, Running(THEIRS, True), False, True, "stop"),
        (replace(OPEN, started=()), Running("plan-b", True), False, False, "refuse"),
        (OVER, NOTHING, False, False, "done"),
        (OVER, SLOW, False, False, "stop"),
        (OVER, Running(THEIRS, True), False, False, "done"),
        (HAD, NOTHING, False, False, "return"),
        (HAD, SLOW, False, False, "stop"),
        (LEFT, Running(THEIRS), False, False, "return"),
        (LEFT, Running(THEIRS, True), False, False, "done"),
        (LEFT, Running("plan-else", True), False, False, "done"),
        (LEFT, NOTHING, False, False, "return"),
        (OVER, NOTHING, True, False, "keep"),
        (OVER, SLOW, True, False, "stop"),
        (OVER, FAST, True, False, "done"),
        (OVER, Running("plan-a"), True, False, "keep"),
        (LEFT, Running("plan-a", True), True, False, "done"),
        (LEFT, Running("plan-a"), True, False, "keep"),
        (LEFT, Running("plan-else", True), True, False, "refuse"),
        (LEFT, Running("plan-else", True), True, True, "stop"),
        (record(result("a", state=CandidateState.FAILED, cause="no memory")), NOTHING, True, False, "done"),
        (record(result("a", state=CandidateState.FAILED, cause="x"), before=ASKED, before_plan=THEIRS), NOTHING, True,
         False, "return"),
    ],
)  # fmt: skip
def test_the_next_step(kept: SweepRecord, running: Running, keep_best: bool, replaces: bool, does: str) -> None:
    step = next_step(kept, running, keep_best=keep_best, replaces=replaces)
    assert step.do.value == does
    assert (step.result is None) == (does not in ("measure", "keep"))


@pytest.mark.parametrize(
    ("kept", "running", "replaces", "does"),
    [
        (OPEN, NOTHING, False, "try"),
        (OPEN, FAST, False, "stop"),
        (OVER, NOTHING, False, "try"),
        (OPEN, Running(THEIRS, True), False, "refuse"),
        (OVER, Running(THEIRS, True), False, "refuse"),
        (OVER, Running(THEIRS, True), True, "stop"),
    ],
)
def test_the_network_is_tried_while_nothing_runs(
    kept: SweepRecord, running: Running, replaces: bool, does: str
) -> None:
    assert next_step(kept, running, keep_best=False, replaces=replaces, tries=True).do.value == does


def test_whose_turn_it_is() -> None:
    step = next_step(OPEN, NOTHING, keep_best=False, replaces=False)
    assert step.result is not None and step.result.candidate.id == "b"
    kept = next_step(OVER, NOTHING, keep_best=True, replaces=False)
    assert kept.result is not None and kept.result.candidate.id == "a"


@pytest.mark.parametrize("keep_best", [False, True])
@pytest.mark.parametrize("had", [True, False])
def test_a_sweep_that_is_killed_after_every_step_ends_and_measures_each_once(keep_best: bool, had: bool) -> None:
    """Each pass of the loop is a new controller, which has the record and what runs alone."""
    kept = record(result("a"), result("b"), result("c"))
    running, replaces = Running(THEIRS, True) if had else NOTHING, had
    measured: list[str] = []
    for _ in range(40):
        step = next_step(kept, running, keep_best=keep_best, replaces=replaces)
        match step.do:
            case SweepStepKind.STOP:
                if running.plan_id not in kept.started:
                    kept = replace(kept, before=ASKED, before_plan=running.plan_id)
                running, replaces = NOTHING, False
            case SweepStepKind.MEASURE:
                assert step.result is not None
                name = step.result.candidate.id
                if running.plan_id == "":  # killed once it has started
                    kept = replace(kept, started=(*kept.started, step.result.plan_id))
                    running = Running(step.result.plan_id, True)
                    continue
                measured.append(name)
                kept = with_result(kept, result(name, {1: 1.0, 4: 2.0 if name == "b" else 1.0}))
            case SweepStepKind.KEEP:
                assert step.result is not None
                kept, running = replace(kept, started=()), Running(step.result.plan_id, True)
            case SweepStepKind.RETURN:
                kept, running = replace(kept, started=()), Running(kept.before_plan, True)
            case SweepStepKind.DONE:
                break
            case SweepStepKind.REFUSE:
                raise AssertionError("nothing of others runs any more")
    else:
        raise AssertionError("it never ends")
    assert measured == ["a", "b", "c"]
    ends = {(True, True): "plan-b", (True, False): "plan-b", (False, True): THEIRS, (False, False): ""}
    assert running.plan_id == ends[keep_best, had]


def test_what_is_measured_counts_only_for_the_same_plan() -> None:
    old = record(
        result("same", {1: 2.0, 4: 3.0}),
        result("other", {1: 2.0}, plan_id="of yesterday"),
        result("failed", state=CandidateState.FAILED, cause="no memory"),
        result("cut", cause="cut by --budget"),
        result("begun", points=result("x", {1: 7.0}).points, seconds=5.0),
        result("beside", {1: 1.0}),
        result("failed beside", state=CandidateState.FAILED, cause="x"),
        result("begun beside", points=result("x", {1: 7.0}).points, seconds=5.0),
    )
    now = [result(name) for name in ("same", "other", "failed", "cut", "begun", "new")]
    now.append(result("refused", state=CandidateState.REFUSED, cause="it does not fit"))
    found = {one.candidate.id: one for one in merged(now, old)}
    assert list(found) == ["same", "other", "failed", "cut", "begun", "new", "refused", "beside", "failed beside"]
    assert [name for name, one in found.items() if one.waits] == ["other", "cut", "begun", "new"]
    assert found["same"].points == old.results[0].points and not found["other"].points
    assert [point.requests for point in found["begun"].points] == [1] and found["begun"].seconds == 5.0
    assert merged(now, None) == tuple(now)


def test_the_best_by_load_and_over_all() -> None:
    kept = record(
        result("a", {1: 50.0, 4: 100.0}),
        result("b", {1: 40.0, 4: 190.0}),
        result("c", {1: 60.0}, state=CandidateState.FAILED, cause="it broke at 4"),
    )
    assert best_by_load(kept) == {"1": "a", "4": "b"}
    winner = overall_best(kept)
    assert winner is not None and winner.candidate.id == "b", "0.8 + 1 is more than 1 + 0.53"
    assert overall_best(record(result("a"))) is None and best_by_load(record(result("a"))) == {}


def test_what_the_gang_was_left_with() -> None:
    assert ended_with(OVER, NOTHING, keep_best=True) == ""
    assert ended_with(OVER, FAST, keep_best=True) == "a"
    assert ended_with(OVER, FAST, keep_best=False) == BEFORE, "it served just this plan before"
    assert ended_with(replace(OVER, kept="a"), FAST, keep_best=False) == "a", "an earlier call has kept it"
    assert ended_with(OVER, Running(THEIRS, True), keep_best=True) == BEFORE
