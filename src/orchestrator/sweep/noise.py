"""How often a load is measured: until the noise is narrower than the difference that is to be seen. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.bench.verdict import FEWEST_RUNS, mean_of, noise_of
from orchestrator.model.measured import LoadPoint

JUDGED = "output_tok_s"
"""The figure that candidates are compared by."""
FIRST = 0.05
"""Noise that is enough while there is nothing to compare with, as a share."""
ALIKE = 0.01
"""Of candidates that differ by less nobody asks which is faster."""


def enough(runs: Sequence[Mapping[str, float]], fastest: float) -> bool:
    """Whether more runs would not tell more. fastest: tokens a second of the best candidate so far, 0 for none"""
    if len(runs) < FEWEST_RUNS:
        return False
    noise, mean = noise_of(JUDGED, runs), mean_of(runs).get(JUDGED, 0.0)
    if not fastest or not mean:
        return noise <= FIRST
    return noise <= max(ALIKE, abs(mean - fastest) / mean)


def point_of(requests: int, serving: Mapping[str, float], runs: Sequence[Mapping[str, float]]) -> LoadPoint:
    """What is kept of a benchmark's record. serving: the mean of its runs"""
    return LoadPoint(
        requests=requests,
        tok_s=serving.get(JUDGED, 0.0),
        ttft_ms=serving.get("ttft_median_ms", 0.0),
        itl_ms=serving.get("itl_median_ms", 0.0),
        decode_tok_s=serving.get("decode_tok_s"),
        runs=len(runs),
        noise=round(noise_of(JUDGED, runs), 4),
    )
