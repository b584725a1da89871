"""`--for N`: the best measured candidate for that many requests, else the best calculated layout, and which it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.reference_cluster import gang
from tests.unit.planning.steps.test_measured import HERE, MODEL, PLAIN, STACK
from tests.unit.sweep.made import record, result

from orchestrator.planning.steps.load_choice import choice_for
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.errors import InputError
from orchestrator.records.sweeps import keep_sweep

GANG = gang()
FP8 = replace(PLAIN, id="tp32+kv=fp8", settings={"kv": "fp8"}, args=("--kv-cache-dtype", "fp8_e4m3"))


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def keep() -> None:
    plain = result("tp32", {1: 50.0, 128: 600.0}, candidate=PLAIN)
    keep_sweep(record(plain, result("f", {1: 40.0, 128: 700.0}, candidate=FP8), **HERE))


@pytest.mark.parametrize(("requests", "args"), [(1, ()), (2, FP8.args), (128, FP8.args), (999, FP8.args)])
def test_the_best_that_was_measured(requests: int, args: tuple[str, ...]) -> None:
    keep()
    choice = choice_for((GANG,), PlanRequest(model=MODEL, extra_args=("--tp-x",), without=("n9",)), requests)
    assert choice.request.extra_args == (*args, "--tp-x") and choice.request.tp == 32
    assert (choice.request.stack, choice.request.without) == (STACK, ("n9",))
    assert "measured here" in choice.why


def test_other_prompts_and_answers_are_not_compared() -> None:
    keep()
    other = record(result("tp32", {1: 9.0, 128: 90.0}, candidate=PLAIN), **HERE, at=9.0)
    keep_sweep(replace(other, load=replace(other.load, output=512)))
    assert choice_for((GANG,), PlanRequest(model=MODEL), 128).request.extra_args == (), "700 tokens/s of short answers"


@pytest.mark.parametrize("asked", [{"stack": "sglang-0.4.4-l40s"}, {"stack": None}])
def test_without_a_measurement_the_calculated_one_and_it_says_so(asked: dict[str, Any]) -> None:
    if asked["stack"]:
        keep()  # by another stack
    choice = choice_for((GANG,), PlanRequest(model=MODEL, **asked), 1)
    assert "calculated, not measured here" in choice.why and "l40s-deploy sweep --model" in choice.why


def test_where_nothing_can_be_calculated_it_is_the_plans_own_choice() -> None:
    asked = PlanRequest(model="MiniMax-M2")
    choice = choice_for((GANG,), asked, 8)
    assert choice.request == asked and "nothing can be calculated" in choice.why


@pytest.mark.parametrize("layout", [{"tp": 32}, {"pp": 4}, {"attn_dp": 4}, {"layout": "node-stages"}])
def test_a_layout_beside_it_is_refused(layout: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="--for was combined"):
        choice_for((GANG,), PlanRequest(model=MODEL, **layout), 1)
