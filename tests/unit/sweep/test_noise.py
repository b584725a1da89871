"""A load is measured until its noise is narrower than the difference to the best."""

from __future__ import annotations

import pytest

from orchestrator.sweep.noise import enough, point_of


@pytest.mark.parametrize(
    ("speeds", "fastest", "wanted"),
    [
        ([100.0], 0.0, False),  # one run has no noise that is known
        ([100.0, 101.0], 0.0, True),
        ([100.0, 120.0], 0.0, False),
        ([100.0, 104.0], 60.0, True),  # far from the best: a rough figure tells enough
        ([100.0, 104.0], 101.0, False),
        ([100.0, 100.1], 100.1, True),  # alike
        ([100.0, 104.0, 102.0, 101.0, 103.0], 104.0, True),
        ([0.0, 0.0], 50.0, True),
    ],
)
def test_enough(speeds: list[float], fastest: float, wanted: bool) -> None:
    assert enough([{"output_tok_s": speed} for speed in speeds], fastest) is wanted


def test_a_point_has_the_mean_and_its_noise() -> None:
    runs = [{"output_tok_s": 99.0}, {"output_tok_s": 101.0}]
    serving = {"output_tok_s": 100.0, "ttft_median_ms": 12.0, "itl_median_ms": 8.0}
    made = point_of(4, serving, runs)
    assert (made.requests, made.tok_s, made.ttft_ms, made.itl_ms, made.runs) == (4, 100.0, 12.0, 8.0, 2)
    assert made.decode_tok_s is None and 0.06 < made.noise < 0.07, "6.314 x 1.414 / sqrt(2) / 100"
    assert point_of(4, {**serving, "decode_tok_s": 120.0}, runs).decode_tok_s == 120.0
