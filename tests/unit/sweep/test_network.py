"""NCCL's settings compared by the all-reduces of a network test."""

from __future__ import annotations

from typing import Any

from orchestrator.model.measured import NetworkTrial
from orchestrator.sweep.network import faster, trial_of

ENV = {"NCCL_ALGO": "Tree"}


def record_of(verdict: str = "ok", **reduces: float) -> dict[str, Any]:
    tests = [{"kind": "all ranks", "bytes": int(size[1:]), "measured_us": us} for size, us in reduces.items()]
    other = {"kind": "the ranks of each node", "bytes": 14336, "measured_us": 1.0}
    return {"verification": {"verdict": verdict}, "tests": [*tests, other]}


def test_a_trial_has_the_times_of_all_ranks() -> None:
    made = trial_of("tree", ENV, record_of(_14336=48.0, _458752=158.0))
    assert (made.name, made.env, made.cause) == ("tree", ENV, "")
    assert made.reduces_us == {"14336": 48.0, "458752": 158.0}


def test_corrupt_data_counts_for_nothing() -> None:
    made = trial_of("tree", ENV, record_of("corrupt", _14336=1.0))
    assert made.reduces_us == {} and "corrupt" in made.cause


def test_only_what_is_clearly_faster_is_named() -> None:
    usual = NetworkTrial(name="as planned", reduces_us={"1": 100.0, "2": 100.0, "3": 100.0})
    tree = NetworkTrial(name="tree", env=ENV, reduces_us={"1": 80.0, "2": 95.0})
    ring = NetworkTrial(name="ring", env={"NCCL_ALGO": "Ring"}, reduces_us={"1": 70.0, "2": 120.0, "3": 110.0})
    broken = NetworkTrial(name="LL", env={"NCCL_PROTO": "LL"}, cause="refused")
    assert faster([usual, tree, ring, broken]) == {"1": "ring"}
    assert faster([tree, ring]) == {} and faster([usual]) == {}
