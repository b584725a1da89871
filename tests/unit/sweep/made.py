"""Candidates and records for the tests of `sweep`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.model.measured import Candidate, CandidateResult, CandidateState, LoadPoint, SweepLoad, SweepRecord
from orchestrator.protocol.planned import Layout

TP4 = Layout(tensor_parallel=4, nnodes=2, gpus_per_node=2)
LOAD = SweepLoad(requests=(1, 4), input=200, output=100, dataset="own text")


def point(requests: int, tok_s: float) -> LoadPoint:
    return LoadPoint(requests=requests, tok_s=tok_s, ttft_ms=10.0, itl_ms=5.0, runs=2, noise=0.02)


def result(name: str, speeds: Mapping[int, float] | None = None, **more: Any) -> CandidateResult:
    """speeds: by requests at once; with any it is measured"""
    usual = {
        "candidate": Candidate(id=name, model="m", layout=TP4),
        "state": CandidateState.MEASURED if speeds else CandidateState.LEFT,
        "plan_id": f"plan-{name}",
        "points": tuple(point(requests, tok_s) for requests, tok_s in (speeds or {}).items()),
    }
    return CandidateResult(**{**usual, **more})


def record(*results: CandidateResult, **more: Any) -> SweepRecord:
    usual = {"gang": "gang0", "addresses": ("n0:",), "model": "m", "stack": "s", "load": LOAD, "results": results}
    return SweepRecord(**{**usual, **more})
