"""The prediction: its check, its ranges, and what an owner's figures are compared with."""

from __future__ import annotations

import pytest

from orchestrator.loading.profiles import load_profile
from orchestrator.planning.prediction import (
    ARTICLES,
    CASES,
    FIRST_TOKEN_S,
    STAGES,
    TP32,
    checked,
    compared,
    first_token_factors,
    kernels_error,
    predict,
    predicts,
)
from orchestrator.planning.roofline import BATCHES, POINTS
from orchestrator.planning.step_kernels import known
from orchestrator.protocol.planned import Layout

INT8 = load_profile(ARTICLES)


@pytest.mark.parametrize("requests", BATCHES)
def test_each_measured_point_is_predicted_within_15_percent(requests: int) -> None:
    assert checked(INT8)[requests] == pytest.approx(POINTS[requests], rel=0.15)


@pytest.mark.parametrize(("model", "layout"), CASES)
def test_every_case_is_known_and_its_ranges_hold_both_models(model: str, layout: Layout) -> None:
    profile = load_profile(model)
    assert known(profile, layout, "L40S")
    found = predict(profile, layout, INT8)
    for batch, speed in found.speeds.items():
        assert all(speed.low <= said[batch] <= speed.high for said in (found.roofline, found.kernels))
        assert min(found.roofline[batch], found.kernels[batch]) <= speed.value
        assert found.first_token_s[batch].low <= found.first_token_s[batch].value <= found.first_token_s[batch].high
    assert found.start_s[0] < found.start_s[1]


def test_the_articles_figures_lie_in_the_ranges() -> None:
    found = predict(INT8, TP32, INT8)
    assert all(found.speeds[requests].holds(speed) for requests, speed in POINTS.items())
    for model, seconds in FIRST_TOKEN_S.items():
        assert predict(load_profile(model), TP32, INT8).first_token_s[128].holds(seconds)
    one, other = first_token_factors().values()
    assert one == pytest.approx(other, rel=0.1)


def test_a_stage_is_checked_by_what_it_takes_at_once() -> None:
    assert kernels_error(INT8, 128, STAGES) == kernels_error(INT8, 32, TP32) < kernels_error(INT8, 128, TP32)


def test_only_these_cases_on_these_gpus_are_predicted() -> None:
    model, layout = CASES[2]
    assert predicts(model, layout.key, ["NVIDIA L40S"])
    assert not predicts(model, TP32.key, ["NVIDIA L40S"])
    assert not predicts(model, layout.key, ["NVIDIA L40S", "NVIDIA L20"])
    assert not predicts(model, layout.key, [])


def test_what_was_measured_stands_beside_what_was_predicted() -> None:
    found = predict(INT8, TP32, INT8)
    rows: list[dict[str, object]] = [
        {"requests": 4, "tok_s": 153.98, "source": "log"},
        {"requests": 32, "tok_s": 100.0, "source": "log"},
        {"requests": 7, "tok_s": 1.0},
        {"requests": 4, "tok_s": None},
    ]
    four, many = compared(found, rows)
    assert four["within"] and not many["within"] and four["source"] == "log"
