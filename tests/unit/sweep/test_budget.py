"""How long candidates take, and which of them a budget leaves out."""

from __future__ import annotations

import pytest
from tests.unit.sweep.made import LOAD, result

from orchestrator.model.measured import Candidate, CandidateState
from orchestrator.sweep.budget import AROUND_S, RUN_S, WARM_RUNS, expected_s, took, within


def test_a_candidate_takes_its_start_and_its_runs() -> None:
    fast = Candidate(id="a", model="m", layout=result("a").candidate.layout, expected={"1": 50.0, "4": 100.0})
    known = expected_s(result("a", candidate=fast), LOAD, 300.0, ())
    assert known == pytest.approx(300.0 + 2 * AROUND_S + WARM_RUNS * (100 / 50 + 400 / 100))
    assert expected_s(result("b"), LOAD, 300.0, ()) == pytest.approx(300.0 + 2 * (AROUND_S + WARM_RUNS * RUN_S))


def test_what_was_measured_says_it_better() -> None:
    measured = [result("a", {1: 1.0}, seconds=100.0), result("b", {1: 1.0}, seconds=200.0)]
    failed = result("c", state=CandidateState.FAILED, cause="x", seconds=5.0)
    assert took([*measured, failed]) == 150.0 and took([failed]) == 0.0
    assert expected_s(result("d"), LOAD, 300.0, measured) == 150.0


@pytest.mark.parametrize(
    ("budget_s", "left"),
    [(None, []), (1000.0, []), (250.0, ["c"]), (100.0, ["b", "c"]), (0.0, ["a", "b", "c"])],
)
def test_the_least_promising_are_cut(budget_s: float | None, left: list[str]) -> None:
    results = [result("a"), result("b"), result("done", {1: 1.0}), result("c")]
    found = within(results, [100.0, 150.0, 999.0, 120.0], budget_s)
    assert [one.candidate.id for one in found if one.cause.startswith("cut by --budget")] == left
    assert [one.state for one in found if one.cause] == [CandidateState.LEFT] * len(left)
    assert found[2] == results[2]
