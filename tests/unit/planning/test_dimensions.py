"""config.json against the profile: contradictions, and fields that are merely absent."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.reference_cluster import node

from l40s_lab.node.models import config
from orchestrator.loading.profiles import load_profile, profile_names
from orchestrator.planning.dimensions import check_checkpoint, disagreements
from orchestrator.protocol.errors import InputError

FINE = load_profile("DeepSeek-V3-0324-Block64x64")
STOCK = load_profile("DeepSeek-V3-0324")
INT8 = load_profile("DeepSeek-R1-Channel-INT8")
TINY = load_profile("tiny-deepseek-v3")
ALL = tuple(map(load_profile, profile_names()))


@pytest.mark.parametrize("name", profile_names())
def test_a_profiles_own_checkpoint_agrees(name: str) -> None:
    profile = load_profile(name)
    assert disagreements(profile, config(profile)) == ()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "architectures is ['Qwen3MoeForCausalLM']"),
        ({"num_hidden_layers": 27}, "num_hidden_layers is 27, the profile has 61"),
        ({"quantization_config": None}, "no quant_method without blocks, the profile has fp8 in blocks"),
        ({"quantization_config": {"quant_method": "awq"}}, "'awq' without blocks"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
         "weight_block_size is [128, 128], the profile has [64, 64]"),
    ],
)  # fmt: skip
def test_contradictions(changes: dict[str, Any], says: str) -> None:
    found = disagreements(FINE, {**config(FINE), **changes})
    assert len(found) == 1
    assert says in found[0]


def test_blocks_where_the_profile_has_none_and_quantisation_where_it_has_none() -> None:
    blocks = config(STOCK)["quantization_config"]
    assert "int8-channel" in disagreements(INT8, {**config(INT8), "quantization_config": blocks})[0]
    assert "no quantisation" in disagreements(TINY, {"quantization_config": {"quant_method": "gptq"}})[0]


def test_silence_is_no_contradiction() -> None:
    assert disagreements(INT8, {}) == ()
    assert disagreements(INT8, {"quantization_config": {"quant_method": "w8a8_int8"}}) == ()


def test_the_message_names_place_values_and_the_profile_that_fits() -> None:
    with pytest.raises(InputError) as caught:
        check_checkpoint(node("n7"), FINE, config(STOCK), ALL)
    assert caught.value.where == "n7: /workspace/DeepSeek-V3-0324-Block64x64/config.json"
    assert caught.value.fix.startswith(
        "it matches the profile DeepSeek-V3-0324 (use `--model DeepSeek-V3-0324`); otherwise"
    )


def test_many_contradictions_are_counted_and_hostile_ones_are_short() -> None:
    with pytest.raises(InputError) as caught:
        check_checkpoint(node(), FINE, {**config(TINY), "architectures": ["x" * 10_000]}, ())
    assert "more" in caught.value.what
    assert len(caught.value.what) < 700
    assert caught.value.fix.startswith("copy")
