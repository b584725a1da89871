"""The best of what was measured, and the load that says most about another one."""

from __future__ import annotations

import pytest
from tests.unit.sweep.made import result

from orchestrator.model.measured import CandidateState, best, nearest_load

RESULTS = (
    result("a", {1: 50.0, 32: 400.0}),
    result("b", {1: 40.0, 32: 500.0}),
    result("c", {1: 90.0, 128: 900.0}, state=CandidateState.FAILED, cause="other text"),
)


def test_only_what_was_measured_to_its_end_counts() -> None:
    assert [one.candidate.id for load in (1, 32) if (one := best(RESULTS, load))] == ["a", "b"]
    assert best(RESULTS, 128) is None and best((), 1) is None


@pytest.mark.parametrize(("requests", "load"), [(1, 1), (2, 32), (32, 32), (33, 32), (500, 32)])
def test_the_nearest_load(requests: int, load: int) -> None:
    assert nearest_load(RESULTS, requests) == load


def test_nothing_measured_says_nothing() -> None:
    assert nearest_load((result("a"),), 4) is None
