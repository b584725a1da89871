"""Candidates: layouts times settings, their names and order, and what arithmetic alone refuses."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.reference_cluster import gang

from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.model.measured import CandidateResult, CandidateState
from orchestrator.planning.offers import offer
from orchestrator.protocol.errors import InputError
from orchestrator.sweep.candidates import USUAL, SweptModel, Variation, candidates_of, in_order, variation_of

LOADS = (1, 4, 32, 128)
GANG = gang()


def model(name: str = "DeepSeek-V3-0324-Block64x64", stack: str = "sglang-0.5.23") -> SweptModel:
    profile, its_stack = load_profile(name), load_stack(stack)
    return SweptModel(profile=profile, stack=its_stack, fits=offer(profile, its_stack, GANG).fits)


def made(
    *vary: str, layouts: tuple[dict[str, Any], ...] = (), of: tuple[SweptModel, ...] = ()
) -> dict[str, CandidateResult]:
    models = of or (model(),)
    found = candidates_of(models, GANG, layouts, tuple(map(variation_of, vary)), LOADS)
    assert len({one.candidate.id for one in found}) == len(found)
    return {one.candidate.id: one for one in found}


def test_six_where_nobody_says_which_and_the_most_promising_first() -> None:
    found = list(made().values())
    assert len(found) == USUAL and all(one.waits for one in found)
    layouts = [one for one in found if not one.candidate.settings]
    assert {"tp32", "pp4,tp8"} <= {one.candidate.id for one in layouts}
    assert list(in_order(layouts, LOADS)) == layouts
    varied = found[len(layouts) :]
    assert varied and {one.candidate.layout for one in varied} == {layouts[0].candidate.layout}


def test_each_value_is_crossed_with_each_other_and_the_default_has_no_name() -> None:
    found = made("kv=auto,fp8", "draft=off,mtp", layouts=({"tp": 32},))
    assert list(found) == ["tp32", "tp32+draft=mtp", "tp32+kv=fp8", "tp32+kv=fp8+draft=mtp"]
    assert found["tp32"].candidate.args == () and found["tp32"].candidate.settings == {}
    both = found["tp32+kv=fp8+draft=mtp"].candidate
    assert both.args[:4] == ("--kv-cache-dtype", "fp8_e4m3", "--speculative-algorithm", "EAGLE")
    assert made("kv=auto,auto", layouts=({"tp": 32}, {"tp": 32})).keys() == {"tp32"}, "the same one, said twice"


def test_attention_groups_vary_as_a_degree() -> None:
    found = made("attn-dp=1,4", layouts=({"tp": 32},))
    assert list(found) == ["tp32", "tp32,dp4"]
    groups = found["tp32,dp4"].candidate
    assert (groups.layout.attention_data_parallel, groups.settings, groups.args) == (4, {}, ())
    assert groups.expected == {}, "what was calculated is for another layout"
    every = made("attn-dp=1,4")
    assert all(one.candidate.layout.attention_data_parallel in (1, 4) for one in every.values())


@pytest.mark.parametrize(
    ("vary", "layout", "words"),
    [
        ("draft=mtp", {"pp": 4, "tp": 8}, "pipeline"),
        ("attn-dp=3", {"tp": 32}, "TP32 is not divisible by attention DP3"),
        ("kv=auto", {"tp": 16}, "it needs 16 GPUs"),
    ],
)
def test_arithmetic_refuses(vary: str, layout: dict[str, Any], words: str) -> None:
    (one,) = made(vary, layouts=(layout,)).values()
    assert one.state is CandidateState.REFUSED and words in one.cause and not one.candidate.args


def test_a_model_without_a_prediction_layer_and_an_old_engine_draft_nothing() -> None:
    plain = model("MiniMax-M2")
    layouts = [{"pp": 4, "tp": 8}]
    assert "no prediction layer" in next(iter(made("draft=mtp", layouts=tuple(layouts), of=(plain,)).values())).cause
    old = model("DeepSeek-R1-Channel-INT8", "sglang-0.4.4-l40s")
    (one,) = made("draft=mtp", layouts=({"tp": 32},), of=(old,)).values()
    assert one.state is CandidateState.REFUSED and "SGLang 0.5" in one.cause


def test_two_checkpoints_stand_beside_each_other() -> None:
    found = made(of=(model(), model("DeepSeek-V3-0324")))
    names = {one.split(":")[0] for one in found}
    assert names == {"DeepSeek-V3-0324-Block64x64", "DeepSeek-V3-0324"}
    assert "DeepSeek-V3-0324-Block64x64:tp32" in found and "DeepSeek-V3-0324:pp4,tp8" in found


def test_a_layout_by_name() -> None:
    profile = load_profile("DeepSeek-V3-0324-Block64x64")
    named = profile.layouts[0].name
    (one,) = made(layouts=({"layout": named},)).values()
    assert one.candidate.named == named and named in one.candidate.id
    with pytest.raises(InputError, match="no layout is called 'nosuch'"):
        made(layouts=({"layout": "nosuch"},))
    (alone,) = made(layouts=({"layout": named},), of=(model(), model("MiniMax-M2"))).values()
    assert alone.candidate.model == profile.name, "the other model has no such layout"


@pytest.mark.parametrize("text", ["kv", "kv=", "kv=auto,,fp8", "speed=9", "attn-dp=x", "attn-dp=0", "=auto"])
def test_what_is_no_variation(text: str) -> None:
    with pytest.raises(ValueError, match="found"):
        variation_of(text)


def test_a_variation() -> None:
    assert variation_of("kv=auto, fp8,auto") == Variation("kv", ("auto", "fp8"))
