"""What the facts of a checkpoint mean for serving it."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from orchestrator.planning.judgement import draft, judge
from orchestrator.protocol.errors import InputError


def facts(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_hidden_layers": 2,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": 8,
        "n_routed_experts": 4,
        "moe_intermediate_size": 512,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64], "activation_scheme": "dynamic"},
        **changes.pop("config", {}),
    }
    return {
        "path": "/models/m",
        "config": config,
        "block": [64, 64],
        "shards": {"named": 1, "readable": 1, "unused": []},
        "bytes": {"files": 10, "tensors": 8},
        "tensors": {"count": 1, "by_dtype": {"F8_E4M3": {"count": 1, "bytes": 8}}},
        "layers": {0: 3, 1: 9, 2: 9},
        "experts": {1: 4, 2: 4},
        "faults": [],
        **changes,
    }


def ids(**changes: Any) -> list[str]:
    return [f"{finding.severity.value} {finding.id}" for finding in judge(facts(**changes)).findings]


def test_nothing_to_say_about_a_whole_one() -> None:
    judgement = judge(facts())
    assert judgement.findings == ()
    assert judgement.loads
    document = judgement.as_json()
    assert document["loads"] is True
    assert document["quantisation"] == {"method": "fp8", "block": [64, 64]}
    assert [d["degree"] for d in document["tensor_parallel"] if d["allowed"]] == [1, 2, 4, 8]


FAULT = {"id": "SHARD-MISSING", "severity": "stop", "where": "x.safetensors", "what": "gone", "fix": "again"}
NOTE = {"id": "SHARD-UNUSED", "severity": "note", "where": "y.safetensors", "what": "odd", "fix": ""}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"faults": [NOTE, FAULT]}, ["stop SHARD-MISSING", "note SHARD-UNUSED"]),
        ({"layers": {0: 3, 2: 9}}, ["stop LAYER-MISSING"]),
        ({"layers": {0: 3, 1: 9}}, ["note MTP-MISSING"]),
        ({"experts": {1: 3, 2: 4}}, ["stop EXPERT-MISSING"]),
        ({"block": None, "config": {"quantization_config": None}}, []),
        (
            {"block": None, "config": {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64]}}},
            ["stop BLOCK-BROKEN"],
        ),
        ({"config": {"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}}},
         ["stop ACTIVATION-SCHEME"]),
        ({"layers": {}, "experts": {}}, []),
    ],
)  # fmt: skip
def test_findings(changes: dict[str, Any], found: list[str]) -> None:
    assert ids(**changes) == found
    assert judge(facts(**changes)).loads is not any(one.startswith("stop") for one in found)


@pytest.mark.parametrize("config", [{"quantization_config": []}, {"architectures": "x"}, {"num_attention_heads": -1}])
def test_a_config_of_strange_types_is_no_crash(config: dict[str, Any]) -> None:
    judge(facts(config=config)).as_json()


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_nextn_predict_layers", "n_routed_experts", "vocab_size"])
@pytest.mark.parametrize("number", [10**12, 10**30, -1])
def test_a_number_that_no_model_has_is_a_finding_and_costs_no_memory(key: str, number: int) -> None:
    tracemalloc.start()
    try:
        judgement = judge(facts(config={key: number}))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 << 20
    assert not judgement.loads
    broken = [finding.title for finding in judgement.findings if finding.id == "CONFIG-BROKEN"]
    assert len(broken) == 1
    assert key in broken[0]
    with pytest.raises(InputError, match=key):
        draft(judgement, name="m", directory="m", source="m")
