"""What was measured here stands beside what is calculated, of just these nodes, this stack and the plan's settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.reference_cluster import gang
from tests.unit.sweep.made import point, record, result

from orchestrator.loading.profiles import load_profile
from orchestrator.model.measured import Candidate, CandidateState
from orchestrator.planning.steps.measured import request_of
from orchestrator.planning.steps.models import fit_words, layouts_json, list_models
from orchestrator.protocol.planned import Layout
from orchestrator.records.nettests import addresses_of
from orchestrator.records.sweeps import keep_sweep, sweeps_of

MODEL, STACK = "DeepSeek-V3-0324-Block64x64", "sglang-0.5.23"
TP32 = Layout(tensor_parallel=32, nnodes=4, gpus_per_node=8)
MEASURED = {1: 40.0, 4: 120.0, 32: 350.0, 128: 600.0}
PLAIN = Candidate(id="tp32", model=MODEL, layout=TP32)
GANG = gang()
HERE = {"gang": GANG.name, "addresses": tuple(addresses_of(GANG.nodes)), "model": MODEL, "stack": STACK}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def here(stack: str = STACK) -> dict[str, dict[int, float]]:
    """By layout, of those that something is measured of."""
    (listed,) = list_models((GANG,), stack, MODEL)
    return {str(fit.layout): dict(fit.here) for fit in listed.offers[0].fits if fit.here}


def test_nothing_is_said_of_what_was_not_measured() -> None:
    assert here() == {}


def test_the_newest_of_the_plans_own_settings_counts() -> None:
    keep_sweep(record(result("tp32", {1: 30.0, 128: 600.0}, candidate=PLAIN), **HERE, at=1.0))
    other = replace(record(result("tp32", {1: 50.0}, candidate=PLAIN), **HERE, at=2.0))
    keep_sweep(replace(other, load=replace(other.load, output=512)))
    varied = replace(PLAIN, id="tp32+kv=fp8", settings={"kv": "fp8"})
    failed = result("x", {1: 1.0}, candidate=PLAIN, state=CandidateState.FAILED, cause="x")
    third = record(result("y", {1: 99.0}, candidate=varied), failed, **HERE, at=3.0)
    keep_sweep(replace(third, load=replace(third.load, input=1)))
    keep_sweep(record(result("tp32", {1: 7.0}, candidate=PLAIN), **{**HERE, "addresses": ("elsewhere:22",)}, at=4.0))
    assert here() == {"TP32": {1: 50.0, 128: 600.0}}
    assert here("sglang-0.4.4-l40s") == {}


def test_it_is_shown_and_in_the_document() -> None:
    keep_sweep(record(result("tp32", {1: 48.0, 128: 770.0}, candidate=PLAIN), **HERE))
    (listed,) = list_models((GANG,), STACK, MODEL)
    fits = listed.offers[0].fits
    assert [one["measured_here"] for one in layouts_json(fits) if one["measured_here"]] == [{"1": 48.0, "128": 770.0}]
    (words,) = (fit_words(fit) for fit in fits if fit.here)
    assert "measured here: 48 to 770 tokens/s at 1 and 128 requests" in words


def test_four_own_points_refit_what_was_not_measured() -> None:
    def basis() -> str:
        (listed,) = list_models((GANG,), STACK, MODEL)
        (speeds,) = (fit.speeds for fit in listed.offers[0].fits if str(fit.layout) == "PP4 x TP8")
        return speeds.basis if speeds is not None else ""

    points = tuple(replace(point(load, 0.0), decode_tok_s=speed) for load, speed in MEASURED.items())
    plain = replace(result("tp32", {1: 1.0}, candidate=PLAIN), points=points)
    stood_in = replace(plain, stand_in=True)
    keep_sweep(record(stood_in, **HERE))
    assert "of TP32 on L40S" in basis(), "a stand-in's figures are none"
    keep_sweep(record(plain, **HERE))
    assert "fitted to 4 points measured here" in basis()


def test_another_checkpoint_beside_it_has_its_own_speeds() -> None:
    other = replace(PLAIN, id="x", model="DeepSeek-V3-0324")
    keep_sweep(record(result("tp32", {1: 50.0}, candidate=PLAIN), result("x", {1: 9.0}, candidate=other), **HERE))
    assert here() == {"TP32": {1: 50.0}}
    assert [len(found.results) for found in sweeps_of(GANG, "DeepSeek-V3-0324")] == [2]


def test_a_candidate_as_a_request() -> None:
    asked = request_of(replace(PLAIN, args=("--kv-cache-dtype", "fp8_e4m3")), "gang0", STACK)
    assert (asked.model, asked.stack, asked.gangs) == (MODEL, STACK, ("gang0",))
    assert (asked.tp, asked.pp, asked.ep, asked.attn_dp) == (32, 1, 1, 1)
    assert asked.extra_args == ("--kv-cache-dtype", "fp8_e4m3") and not asked.layout
    named = request_of(replace(PLAIN, named="node-stages", file="/here/m.yml"), "gang0", STACK)
    assert (named.layout, named.tp, named.model) == ("node-stages", None, "/here/m.yml")
    assert load_profile(MODEL).name == MODEL
