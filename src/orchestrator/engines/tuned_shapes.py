"""The matrices that tuned configs are named after, by formula from a checkpoint's dimensions and a layout.

Pipeline parallelism changes none of them: it deals out whole layers. Sources: `srt/models/deepseek_v2.py` of both
versions (DeepseekV2AttentionMLA, DeepseekV2MLP, DeepseekV2MoE) and, for other attention, `srt/layers/linear.py`
(QKVParallelLinear); expert parallelism: `srt/layers/moe/fused_moe_triton/layer.py` (FusedMoE.__init__) of 0.5.23.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.engines.tuned_files import Lookup
from orchestrator.engines.tuned_lookup import fuses_shared_expert
from orchestrator.model.profile import ModelProfile
from orchestrator.planning.layout import head_dim, kept_whole
from orchestrator.protocol.layout import Layout


@dataclass(frozen=True, slots=True)
class Gemm:
    """One linear layer's weight on one GPU. part: what it is, in the model's own words; rows: N, columns: K."""

    part: str
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of one layer on one GPU. number: E; inner: N, one expert's share; fused: the shared one is in E."""

    number: int
    inner: int
    fused: bool


def experts(profile: ModelProfile, layout: Layout, lookup: Lookup) -> Experts | None:
    """The fused MoE kernel's shape; None for a model without experts."""
    dims, expert = profile.dimensions, layout.expert_parallel
    if not dims.n_routed_experts:
        return None
    fused = fuses_shared_expert(
        lookup,
        profile.architecture,
        routed=dims.n_routed_experts,
        shared=dims.n_shared_experts,
        expert_parallel=expert,
    )
    ways = layout.tensor_parallel // expert
    return Experts(dims.n_routed_experts // expert + fused, dims.moe_intermediate_size // ways, fused)


def linears(profile: ModelProfile, layout: Layout, lookup: Lookup) -> tuple[Gemm, ...]:
    """Every linear layer that runs in the checkpoint's quantisation, each shape with its first name."""
    found: dict[tuple[int, int], Gemm] = {}
    for gemm in (*_attention(profile, layout, lookup), *_feed_forward(profile, layout, lookup)):
        if gemm.rows and gemm.columns:
            found.setdefault((gemm.rows, gemm.columns), gemm)
    return tuple(found.values())


def _attention(profile: ModelProfile, layout: Layout, lookup: Lookup) -> Iterator[Gemm]:
    dims, tensor = profile.dimensions, layout.tensor_parallel // layout.attention_data_parallel
    heads, hidden = dims.num_attention_heads, dims.hidden_size
    if not dims.kv_lora_rank:
        size = head_dim(profile)
        kv_heads = max(1, dims.num_key_value_heads // tensor)
        yield Gemm("qkv_proj", (heads // tensor + 2 * kv_heads) * size, hidden)
        yield Gemm("o_proj", hidden, heads * size // tensor)
        return
    latent = dims.kv_lora_rank + dims.qk_rope_head_dim
    queries = heads * (dims.qk_nope_head_dim + dims.qk_rope_head_dim) // tensor
    if not dims.q_lora_rank:
        yield Gemm("q_proj", queries, hidden)
        yield Gemm("kv_a_proj_with_mqa", latent, hidden)
    elif lookup.fuses_qkv_a:
        yield Gemm("fused_qkv_a_proj_with_mqa", dims.q_lora_rank + latent, hidden)
    else:
        yield Gemm("q_a_proj", dims.q_lora_rank, hidden)
        yield Gemm("kv_a_proj_with_mqa", latent, hidden)
    if dims.q_lora_rank:
        yield Gemm("q_b_proj", queries, dims.q_lora_rank)
    yield Gemm("kv_b_proj", heads * (dims.qk_nope_head_dim + dims.v_head_dim) // tensor, dims.kv_lora_rank)
    yield Gemm("o_proj", hidden, heads * dims.v_head_dim // tensor)


def _feed_forward(profile: ModelProfile, layout: Layout, lookup: Lookup) -> Iterator[Gemm]:
    dims, tensor = profile.dimensions, layout.tensor_parallel
    whole_dense, whole_shared = kept_whole(profile, tensor) if layout.expert_parallel > 1 else (False, False)
    if dims.first_k_dense_replace or not dims.n_routed_experts:
        yield from _mlp("dense layers", dims.hidden_size, dims.intermediate_size, 1 if whole_dense else tensor)
    moe = experts(profile, layout, lookup)
    if moe and dims.n_shared_experts and not moe.fused:
        inner = dims.moe_intermediate_size * dims.n_shared_experts
        yield from _mlp("shared experts", dims.hidden_size, inner, 1 if whole_shared else tensor)


def _mlp(words: str, hidden: int, inner: int, ways: int) -> Iterator[Gemm]:
    yield Gemm(f"gate_up_proj of {words}", 2 * inner // ways, hidden)
    yield Gemm(f"down_proj of {words}", hidden, inner // ways)
