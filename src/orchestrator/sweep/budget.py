"""How long a sweep takes, and what a budget leaves out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from orchestrator.bench.verdict import FEWEST_RUNS
from orchestrator.model.measured import CandidateResult, CandidateState, SweepLoad

RUN_S = 60.0
"""Of a run whose speed is not calculated."""
AROUND_S = 30.0
"""Of a load beside its runs: looks at the nodes, the client's own start."""
WARM_RUNS = FEWEST_RUNS + 1
"""The warm-up, and as many runs as there are at least."""
CUT = "cut by --budget"


def expected_s(result: CandidateResult, load: SweepLoad, start_s: float, known: Sequence[CandidateResult]) -> float:
    """Seconds that a candidate takes: as the measured ones took on average, else as the calculated speeds say.

    start_s: of a start, as the last one took or the disks allow
    """
    return took(known) or start_s + sum(
        AROUND_S + WARM_RUNS * _run_s(result, load, requests) for requests in load.requests
    )


def took(known: Sequence[CandidateResult]) -> float:
    """Seconds of a measured candidate on average; 0 where there is none."""
    seconds = [result.seconds for result in known if result.state is CandidateState.MEASURED and result.seconds]
    return fmean(seconds) if seconds else 0.0


def _run_s(result: CandidateResult, load: SweepLoad, requests: int) -> float:
    tokens_s = result.candidate.expected.get(str(requests), 0.0)
    return requests * load.output / tokens_s if tokens_s else RUN_S


def within(
    results: Sequence[CandidateResult], seconds: Sequence[float], budget_s: float | None
) -> tuple[CandidateResult, ...]:
    """The same, with what the budget does not reach cut. results: in their order, with the seconds of each; None: no
    budget"""
    if budget_s is None:
        return tuple(results)
    left, kept = budget_s, []
    for result, takes in zip(results, seconds, strict=True):
        if not result.waits:
            kept.append(result)
        elif takes <= left:
            left -= takes
            kept.append(result)
        else:
            kept.append(
                replace(result, cause=f"{CUT}: it takes about {takes:.0f} s, and {max(left, 0.0):.0f} s are left")
            )
    return tuple(kept)
