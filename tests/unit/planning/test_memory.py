"""The budget against the articles' log and the checkpoints' known sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.reference_cluster import GPU_BYTES

from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.model.profile import ModelProfile, Stack
from orchestrator.planning.dimensions import context_length
from orchestrator.planning.memory import GIB, budget, checkpoint_bytes, kv_bytes_per_token, weights_per_gpu
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.planned import Layout

TP32 = Layout(tensor_parallel=32, nnodes=4, gpus_per_node=8)
PP4 = Layout(tensor_parallel=8, pipeline_parallel=4, nnodes=4, gpus_per_node=8)
IN_FOUR = replace(TP32, attention_data_parallel=4)
GRAPHS_32 = {"--cuda-graph-max-bs-decode": ("32",)}
INT8 = load_profile("DeepSeek-R1-Channel-INT8")
FINE = load_profile("DeepSeek-V3-0324-Block64x64")
STOCK = load_profile("DeepSeek-V3-0324")


def slice_of(ranks: int) -> ModelProfile:
    """The slice: so many 32nds of every width, so that each of these ranks has the weights of one of 32."""
    widths = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "moe_intermediate_size", "vocab_size")
    cut = {width: getattr(FINE.dimensions, width) * ranks // 32 for width in widths}
    return replace(FINE, dimensions=replace(FINE.dimensions, **cut))


SLICE = slice_of(4)
"""What TP4 serves."""
OLD, NEW, CPU = (load_stack(name) for name in ("sglang-0.4.4-l40s", "sglang-0.5.23", "sglang-0.5.23-cpu"))


def of(stack: Stack = NEW, layout: Layout = TP32, flags: Mapping[str, tuple[str, ...]] = GRAPHS_32, **more: Any) -> Any:
    """A budget, whose figures are there where a GPU was seen."""
    return budget(
        more.pop("profile", FINE), stack, layout, flags=flags, **{"gpu_total": GPU_BYTES, "where": "", **more}
    )


def test_the_articles_int8_log_within_five_percent() -> None:
    """Load weight end. mem usage=21.27 GB; max_total_num_tokens=201723."""
    memory = of(OLD, flags={}, profile=INT8)
    assert memory.weights / GIB == pytest.approx(21.27, rel=0.05)
    assert memory.kv_tokens == pytest.approx(201_723, rel=0.05)
    assert memory.kv_bytes_per_token == 70_272


STARTS = [
    pytest.param(start, id=f"{start['step']}, {start['at']}")
    for start in json.loads((Path(__file__).parents[2] / "slice/figures.json").read_text())["results"]
    if "kv_tokens" in start["figures"].get("engine", {}) and "plan_for_this_card" in start["figures"]
]


@pytest.mark.parametrize("start", STARTS)
def test_every_start_of_the_slice_on_gpus_within_two_and_three_percent(start: dict[str, Any]) -> None:
    """What the engine's log said of weights and KV tokens, with this card, fraction and chunk."""
    engine, card = start["figures"]["engine"], start["figures"]["plan_for_this_card"]
    alone, several = (start["step"].startswith(words) for words in ("one rank", "several nodes"))
    ranks = 1 if alone else 4
    nodes = ranks if several else 1
    layout = Layout(tensor_parallel=ranks, nnodes=nodes, gpus_per_node=ranks // nodes)
    total, asked = int(card["gpu_total_gib"] * GIB), {"--mem-fraction-static": (str(engine["fraction"]),)}
    stack = replace(NEW, engine_version=start["engine"].split()[1])
    found = of(stack, layout, asked, profile=slice_of(ranks), gpu_total=total, nvlink=not alone)
    assert found.weights / GIB == pytest.approx(max(engine["weights_gib"]), rel=0.02)
    assert found.kv_tokens == pytest.approx(min(engine["kv_tokens"]), rel=0.03)


def test_fp8_needs_a_little_less_than_int8() -> None:
    assert weights_per_gpu(FINE, TP32) / GIB == pytest.approx(20.7, rel=0.01)
    assert weights_per_gpu(FINE, TP32) < weights_per_gpu(INT8, TP32)


def test_a_pipeline_divides_the_kv_cache_and_tensor_parallelism_does_not() -> None:
    assert kv_bytes_per_token(FINE, PP4) == 16 * 1152
    assert kv_bytes_per_token(FINE, replace(TP32, tensor_parallel=16)) == kv_bytes_per_token(FINE, TP32)


def test_the_heaviest_stage_of_four() -> None:
    assert weights_per_gpu(STOCK, PP4) / GIB == pytest.approx(22.0, rel=0.01)


def test_what_expert_parallelism_keeps_whole_costs_memory() -> None:
    """31/32 of 3 dense layers and 58 shared experts on every rank."""
    spread = replace(TP32, expert_parallel=2)
    assert (weights_per_gpu(STOCK, spread) - weights_per_gpu(FINE, TP32)) / GIB == pytest.approx(3.38, rel=0.005)
    assert weights_per_gpu(FINE, spread) == weights_per_gpu(FINE, TP32)


def test_the_published_checkpoints_size() -> None:
    """DeepSeek-V3's 163 files have 688.59 GB of tensors."""
    assert checkpoint_bytes(STOCK) == pytest.approx(688.59e9, rel=0.001)
    assert checkpoint_bytes(FINE) > checkpoint_bytes(STOCK)
    assert checkpoint_bytes(replace(STOCK, bytes=5)) == 5


def test_0_5_23_keeps_more_free_than_0_4_4() -> None:
    new = of()
    assert new.kv_tokens < of(OLD, flags={}).kv_tokens
    assert new.static_fraction == 0.732  # as 0.5.23 resolves it: tests/engine/test_memory.py


def test_what_does_not_fit_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(InputError, match=r"does not fit.*GiB") as caught:
        of(OLD, Layout(tensor_parallel=16, nnodes=2, gpus_per_node=8), {}, where="gang g")
    assert caught.value.where == "gang g"


@pytest.mark.parametrize(("stack", "total"), [(OLD, None), (CPU, None), (CPU, GPU_BYTES)])
def test_without_a_gpu_nothing_is_claimed_about_tokens(stack: Stack, total: int | None) -> None:
    memory = of(stack, flags={}, gpu_total=total)
    assert memory.kv_tokens is None
    assert memory.weights
    assert "not calculated" in memory.explanation[-1]


@pytest.mark.parametrize("stack", [OLD, NEW])
def test_what_flags_say_of_memory_counts(stack: Stack) -> None:
    more = of(stack, flags={"--mem-fraction-static": ("0.9",)})
    assert more.static_fraction == 0.9
    taken = {OLD: 1.29, NEW: 1.50}[stack]
    assert more.reserve == pytest.approx((GPU_BYTES - taken * GIB) * 0.1, rel=0.001)
    assert of(stack, flags={"--kv-cache-dtype": ("fp8_e4m3",)}).kv_bytes_per_token == 70_272 // 2
    for limit, least in ((1000, 1000), (10**9, 150_000)):
        assert least <= of(stack, flags={"--max-total-tokens": (str(limit),)}).kv_tokens <= limit


def test_a_draft_costs_a_layer_of_weights_and_of_cache() -> None:
    drafted = of(flags={**GRAPHS_32, "--speculative-algorithm": ("EAGLE",)})
    assert drafted.kv_bytes_per_token == 62 * 1152
    assert 0.3 < (drafted.weights - of().weights) / GIB < 0.6


def test_attention_in_groups_is_cut_into_fewer_parts() -> None:
    grouped, plain = of(layout=IN_FOUR, flags={**GRAPHS_32, "--max-running-requests": ("64",)}), of()
    assert grouped.weights > plain.weights and grouped.static_fraction < plain.static_fraction
    (words,) = (line for line in grouped.explanation if line.startswith("attention in 4 groups"))
    assert "prefills 1,024 tokens at once, runs at most 16 requests" in words


@pytest.mark.parametrize(
    ("stack", "more"), [(NEW, 129280 * 7168 * 2 * (1 / 8 - 1 / 32)), (OLD, 129280 * 7168 * 2 * 31 / 32)]
)
def test_attention_groups_hold_more_of_the_embedding(stack: Stack, more: float) -> None:
    """0.5 splits it over one group's ranks, 0.4.4 not at all; apart from attention weights, only this grows."""
    of_attention = weights_per_gpu(FINE, IN_FOUR) - weights_per_gpu(FINE, TP32)
    of_attention -= 129280 * 7168 * 2 // 8 - 129280 * 7168 * 2 // 32
    grown = of(stack, IN_FOUR).weights - of(stack).weights
    assert grown == pytest.approx(of_attention + more, abs=4)


def test_the_table_of_requests_is_counted_out_of_the_reserve() -> None:
    """SGLang's req_to_token: 2048 requests and a row for padding, of 163,840 tokens and 4 more, int32."""
    found = of(context=163_840)
    assert found.request_table == 2049 * 163_844 * 4
    assert any("2,049 x 163,844 x 4 bytes = 1.25 GiB" in line for line in found.explanation)
    for stack, flags, groups, wanted in (
        (NEW, {"--max-running-requests": ("64",)}, 4, 17 * 163_844 * 4),
        (NEW, {"--context-length": ("8192",)}, 1, 4097 * 8196 * 4),
        (NEW, {"--speculative-algorithm": ("EAGLE",), "--speculative-num-draft-tokens": ("4",)}, 1, 49 * 163_848 * 4),
        (OLD, {}, 1, 2049 * 163_844 * 4),
        (OLD, {"--max-running-requests": ("64",)}, 4, 65 * 163_844 * 4),
    ):
        layout = replace(TP32, attention_data_parallel=groups)
        assert of(stack, layout, flags, context=163_840).request_table == wanted, (stack.name, flags)


def test_without_a_context_length_the_table_of_requests_is_not_counted() -> None:
    found = of()
    assert found.request_table is None and found.needed is None and found.next_fraction is None
    assert any("req_to_token): not calculated" in line for line in found.explanation)


@pytest.mark.parametrize(
    ("config", "length"),
    [
        (
            {
                "max_position_embeddings": 163_840,
                "rope_scaling": {"factor": 40, "original_max_position_embeddings": 4096},
            },
            163_840,
        ),
        ({"max_position_embeddings": 4096, "rope_scaling": {"factor": 4, "type": "linear"}}, 16_384),
        ({"max_position_embeddings": 4096, "rope_scaling": {"factor": 4, "rope_type": "llama3"}}, 4096),
        ({"text_config": {"max_position_embeddings": 262_144}}, 262_144),
        ({"model_max_length": 32_768, "max_position_embeddings": 4096}, 32_768),
        ({"max_position_embeddings": "many"}, None),
        ({}, None),
    ],
)
def test_the_context_length_is_read_as_the_engine_reads_it(config: dict[str, Any], length: int | None) -> None:
    assert context_length(config) == length


def test_sliding_windows_keep_fewer_tokens_than_full_layers() -> None:
    """SGLang's two pools: 18 layers with a window keep 0.8 tokens for each one of the 18 others, a head of 64, bf16."""
    oss, one_node = load_profile("gpt-oss-120b"), Layout(tensor_parallel=8, nnodes=1, gpus_per_node=8)
    cell = 2 * 1 * 64 * 2
    for flags, kept in (
        ({}, 18 * cell + int(0.8 * 18 * cell)),
        ({"--swa-full-tokens-ratio": ("0.5",)}, 18 * cell + 9 * cell),
        ({"--disable-hybrid-swa-memory": ()}, 36 * cell),
    ):
        found = of(NEW, one_node, flags, profile=oss)
        assert found.kv_bytes_per_token == kept
    assert any("18 of 36 layers have a sliding window" in line for line in found.explanation)
    staged = replace(one_node, tensor_parallel=4, pipeline_parallel=2)
    assert kv_bytes_per_token(oss, staged) == 18 * 2 * cell, "a stage of 18 layers, two heads each, without a division"
