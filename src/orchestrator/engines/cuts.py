"""How a checkpoint's matrices are cut over ranks: the shape of each, and which cut an engine's kernels refuse.

Every quantised dimension that is cut ends on a block (sglang 0.5.23, srt/layers/quantization/fp8.py:
validate_block_quant_shapes and Fp8MoEMethod.create_weights; fp8_utils.validate_fp8_block_shape).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from orchestrator.model.profile import Dimensions, ModelProfile, Part

MOE, DENSE = "moe_intermediate_size", "intermediate_size"
_PARTS: Mapping[str, Part] = {MOE: "experts", DENSE: "dense"}
"""Which part of a model a cut dimension is of; all others are attention's."""
_MARLIN_TILE = 64
"""A share of an expert in groups of int4 must be a multiple of it: check_moe_marlin_supports_layer in sglang 0.5.23."""


def kept_whole(profile: ModelProfile, tensor: int) -> tuple[bool, bool]:
    """Whether (dense layers, shared experts) must be complete on every rank where experts are spread: their cut
    does not end on a block."""
    dims = profile.dimensions
    return (
        bool(dims.first_k_dense_replace) and bool(misfits(profile, DENSE, dims.intermediate_size, tensor)),
        bool(dims.n_shared_experts) and bool(misfits(profile, MOE, dims.moe_intermediate_size, tensor, "shared")),
    )


def misfits(profile: ModelProfile, what: str, size: int, ways: int, part: Part | None = None) -> list[str]:
    """Why a dimension can't be cut so many ways, one sentence of arithmetic each; empty where it can.

    what: the dimension's name for people; part: which of the model's parts it is of, where the name does not tell
    """
    if size % ways:
        return [f"{what} {size} is not divisible by {ways}"]
    share = size // ways
    stored = profile.stored(part or _PARTS.get(what, "attention"))
    if stored == "int4-group" and share % _MARLIN_TILE:
        return [f"{what} {size}/{ways} = {share} is not a multiple of {_MARLIN_TILE}, the tile of the int4 kernels"]
    return [
        f"{what} {size}/{ways} = {share} is not a multiple of the quantisation block {block}"
        for block in dict.fromkeys(profile.block)
        if stored == "fp8-block" and share % block
    ]


class Matrix(NamedTuple):
    """One linear layer's weight on one GPU. part: what it is, in the model's own words; rows: N, columns: K."""

    part: str
    rows: int
    columns: int


def attention_matrices(dims: Dimensions, ways: int) -> Iterator[Matrix]:
    """Of one layer, cut so many ways."""
    heads, hidden = dims.num_attention_heads, dims.hidden_size
    if not dims.kv_lora_rank:
        kv_heads = max(1, dims.num_key_value_heads // ways)
        yield Matrix("qkv_proj", (heads // ways + 2 * kv_heads) * dims.head, hidden)
        yield Matrix("o_proj", hidden, heads * dims.head // ways)
        return
    queries = heads * (dims.qk_nope_head_dim + dims.qk_rope_head_dim) // ways
    yield Matrix("q_a_proj", dims.q_lora_rank, hidden) if dims.q_lora_rank else Matrix("q_proj", queries, hidden)
    yield Matrix("kv_a_proj_with_mqa", dims.kv_lora_rank + dims.qk_rope_head_dim, hidden)
    if dims.q_lora_rank:
        yield Matrix("q_b_proj", queries, dims.q_lora_rank)
    yield Matrix("kv_b_proj", heads * (dims.qk_nope_head_dim + dims.v_head_dim) // ways, dims.kv_lora_rank)
    yield Matrix("o_proj", hidden, heads * dims.v_head_dim // ways)
