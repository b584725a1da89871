"""`--for N`: the best measured candidate for that many requests, else the best calculated layout, and which it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.reference_cluster import gang
from tests.unit.planning.steps.test_measured import HERE, MODEL, PLAIN, STACK
from tests.unit.sweep.made import record, result

from orchestrator.engines.registry import engine_of
from orchestrator.loading.profiles import load_stack
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


@pytest.mark.parametrize(
    ("stack", "requests", "stages", "groups", "captured"),
    [
        ("sglang-0.4.4-l40s", 32, 1, 1, None),  # the profile's own
        ("sglang-0.4.4-l40s", 33, 1, 1, "33"),
        ("sglang-0.4.4-l40s", 128, 1, 1, "128"),
        ("sglang-0.4.4-l40s", 999, 1, 1, "128"),  # nobody has measured what larger ones take
        ("sglang-0.5.23", 33, 2, 2, None),  # each stage has 9 of each group at once
        ("sglang-0.5.23", 128, 2, 2, None),  # 32
        ("sglang-0.5.23", 129, 2, 2, "40"),  # 33: of a group's 8 ranks, which share out the tokens, a multiple
        ("vllm-0.33.0", 128, 4, 1, None),
    ],
)
def test_what_is_calculated_is_captured_for_as_many(
    stack: str, requests: int, stages: int, groups: int, captured: str | None
) -> None:
    asked = PlanRequest(model=MODEL, stack=stack, extra_args=("--trust-remote-code",))
    choice = choice_for((GANG,), asked, requests)
    *graphs, theirs = choice.request.extra_args
    name = engine_of(load_stack(stack)).names.cuda_graph_max_bs
    assert (choice.request.pp or 1, choice.request.attn_dp or 1) == (stages, groups)
    assert graphs == ([] if captured is None else [name, captured])
    assert theirs == "--trust-remote-code", "what was typed comes last, which counts more"
    assert " ".join(graphs) in choice.why and ("CUDA graph" in choice.why) is bool(graphs)


@pytest.mark.parametrize(("typed", "added"), [("16", True), ("160", False)])
def test_graphs_that_an_operator_has_for_more_stay(typed: str, added: bool) -> None:
    """By l40s_args, or after --, which counts more in any case."""
    words = ("--cuda-graph-max-bs", typed)
    overrides = replace(GANG.leader.overrides, args=words)
    inventory = replace(GANG, nodes=tuple(replace(node, overrides=overrides) for node in GANG.nodes))
    asked = PlanRequest(model=MODEL, stack="sglang-0.4.4-l40s")
    by_inventory = choice_for((inventory,), asked, 128).request.extra_args
    assert by_inventory == (("--cuda-graph-max-bs", "128") if added else ())
    by_hand = choice_for((GANG,), replace(asked, extra_args=words), 128).request.extra_args
    assert by_hand[-2:] == words


def test_what_was_measured_is_started_as_it_was_measured() -> None:
    keep()
    args = choice_for((GANG,), PlanRequest(model=MODEL), 128).request.extra_args
    assert args == FP8.args, "other graphs were not measured"


def test_where_nothing_can_be_calculated_it_is_the_plans_own_choice() -> None:
    asked = PlanRequest(model="MiniMax-M2")
    choice = choice_for((GANG,), asked, 8)
    assert choice.request == asked and "nothing can be calculated" in choice.why


@pytest.mark.parametrize("layout", [{"tp": 32}, {"pp": 4}, {"attn_dp": 4}, {"layout": "node-stages"}])
def test_a_layout_beside_it_is_refused(layout: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="--for was combined"):
        choice_for((GANG,), PlanRequest(model=MODEL, **layout), 1)
