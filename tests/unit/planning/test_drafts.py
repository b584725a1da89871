"""`--draft`: the flags of each engine, what it costs in memory, and where it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.support.reference_cluster import GPU_BYTES

from orchestrator.engines.engine import Engine
from orchestrator.engines.registry import engine_of
from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.planning import drafts
from orchestrator.planning.memory import budget
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.planned import Layout

MODEL = load_profile("DeepSeek-V3-0324-Block64x64")
TP32 = Layout(tensor_parallel=32, nnodes=4, gpus_per_node=8)
STAGES = Layout(tensor_parallel=8, pipeline_parallel=4, nnodes=4, gpus_per_node=8)
SGLANG, VLLM = load_stack("sglang-0.5.23"), load_stack("vllm-0.33.0")
EAGLE: Mapping[str, tuple[str, ...]] = {"--speculative-algorithm": ("EAGLE",)}


def engine(name: str) -> Engine:
    """Of a stack."""
    return engine_of(load_stack(name))


@pytest.mark.parametrize(
    ("stack", "value", "told"),
    [
        ("sglang-0.5.23", "mtp", "EAGLE 1 1 2"),
        ("sglang-0.5.23", "mtp3", "EAGLE 3 1 4"),
        ("vllm-0.33.0", "mtp", '{"method":"mtp","num_speculative_tokens":1}'),
        ("vllm-0.33.0", "mtp3", '{"method":"mtp","num_speculative_tokens":3}'),
    ],
)
def test_a_setting_becomes_each_engines_own_flags(stack: str, value: str, told: str) -> None:
    words = drafts.draft_words(engine(stack), MODEL, value)
    assert " ".join(word for word in words if not word.startswith("--")) == told
    engine(stack).flags().given(words, where="test")
    assert drafts.draft_words(engine(stack), MODEL, "off") == ()


@pytest.mark.parametrize(
    ("stack", "model", "why"),
    [
        ("sglang-0.5.23", "DeepSeek-R1-Channel-INT8", "in INT8"),
        ("sglang-0.5.23", "Qwen3-235B-A22B-Instruct-2507-FP8", "no prediction layer"),
        ("sglang-0.4.4-l40s", "DeepSeek-V3-0324-Block64x64", "can't draft"),
    ],
)
def test_what_can_not_draft_is_refused(stack: str, model: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as refused:
        drafts.draft_words(engine(stack), load_profile(model), "mtp")
    assert refused.value.where == "--draft mtp" and refused.value.fix


def test_pipeline_stages_are_refused_whoever_wrote_the_flags() -> None:
    drafts.refuse(engine("sglang-0.5.23"), MODEL, TP32, EAGLE, "gang0")
    drafts.refuse(engine("sglang-0.5.23"), MODEL, STAGES, {}, "gang0")
    with pytest.raises(InputError, match=r"at PP4 x TP8: .*prefill-only"):
        drafts.refuse(engine("sglang-0.5.23"), MODEL, STAGES, EAGLE, "gang0")
    drafts.refuse(engine("sglang-0.5.23"), MODEL, STAGES, {**EAGLE, "--disaggregation-mode": ("prefill",)}, "gang0")


def test_attention_that_can_not_draft_is_refused() -> None:
    flags = {**EAGLE, "--attention-backend": ("torch_native",)}
    with pytest.raises(InputError, match="no drafts in attention backend torch_native") as refused:
        drafts.refuse(engine("sglang-0.5.23"), MODEL, TP32, flags, "gang0")
    assert "--attention-backend triton" in refused.value.fix
    drafts.refuse(engine("sglang-0.5.23"), MODEL, TP32, {**flags, "--attention-backend": ("triton",)}, "gang0")
    drafts.refuse(engine("sglang-0.5.23"), MODEL, TP32, {"--attention-backend": ("torch_native",)}, "gang0")


@pytest.mark.parametrize(
    ("flags", "refused"),
    [
        (EAGLE, True),
        ({"--speculative-config": ('{"method":"mtp"}',)}, True),
        ({"--speculative-algorithm": ("NGRAM",)}, False),
        ({**EAGLE, "--speculative-draft-model-path": ("/workspace/draft",)}, False),
    ],
)
def test_a_draft_of_the_checkpoints_own_needs_its_layer(flags: Mapping[str, tuple[str, ...]], refused: bool) -> None:
    bare = replace(MODEL, dimensions=replace(MODEL.dimensions, num_nextn_predict_layers=0))
    if not refused:
        drafts.refuse(engine("sglang-0.5.23"), bare, TP32, flags, "gang0")
        return
    with pytest.raises(InputError, match="no prediction layer"):
        drafts.refuse(engine("sglang-0.5.23"), bare, TP32, flags, "gang0")


def test_its_layer_costs_weights_and_kv_cache() -> None:
    plain, drafting = (
        budget(MODEL, SGLANG, TP32, flags=flags, gpu_total=GPU_BYTES, where="gang0") for flags in ({}, EAGLE)
    )
    layers = MODEL.dimensions.num_hidden_layers
    assert (drafting.kv_bytes_per_token or 0) * layers == (plain.kv_bytes_per_token or 0) * (layers + 1)
    assert (drafting.weights or 0) > (plain.weights or 0) and (drafting.kv_tokens or 0) < (plain.kv_tokens or 0)
    assert any("the draft's layer included" in line for line in drafting.explanation)


@pytest.mark.parametrize(
    ("stack", "value", "told"),
    [("vllm-0.33.0", "mtp3", "drafts of 3 tokens"), ("vllm-0.33.0", "mtp", ""), ("sglang-0.5.23", "mtp3", "")],
)
def test_what_was_not_right_is_said(stack: str, value: str, told: str) -> None:
    words = drafts.draft_words(engine(stack), MODEL, value)
    flags = {words[0]: words[1:]}
    said = [finding.title for finding in drafts.findings(engine(stack), flags, MODEL, "gang1")]
    assert bool(said) == bool(told) and all(told in title for title in said)
