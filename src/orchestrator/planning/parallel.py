"""Which tensor-parallel degrees a block-quantised checkpoint allows, by the checks that the engine makes.

Every matrix that tensor parallelism cuts must be cut between blocks: sglang 0.5.23
srt/layers/quantization/fp8.py, Fp8LinearMethod.validate_block_quant_shapes and Fp8MoEMethod.create_weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.model.profile import Dimensions

DEGREES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Degree:
    """One tensor-parallel degree; refusal: why it is not allowed, '' if it is."""

    tensor_parallel: int
    refusal: str


MOE = "moe_intermediate_size"
DENSE = "intermediate_size"


@dataclass(frozen=True, slots=True)
class Cut:
    """One dimension that is divided among the ranks; `what` names it for people."""

    what: str
    size: int


def degrees(size: Dimensions, block: tuple[int, int] | None, *, head_dim: int) -> tuple[Degree, ...]:
    """Every power of two up to 128 with the first reason against it.

    block: the FP8 block (n, k), None where nothing is block-quantised. head_dim: of models without MLA.
    """
    return tuple(Degree(tp, _refusal(size, block, head_dim, tp)) for tp in DEGREES)


def _refusal(size: Dimensions, block: tuple[int, int] | None, head_dim: int, tp: int) -> str:
    if size.num_attention_heads % tp:
        return f"{size.num_attention_heads} attention heads can't be split over {tp} ranks"
    kv = size.num_key_value_heads
    if not size.kv_lora_rank and kv % tp and tp % kv:
        return f"{kv} key-value heads can be neither split over nor replicated on {tp} ranks"
    if block is None:
        return ""
    for cut in cuts(size, head_dim, tp):
        part = cut.size / tp
        for side in sorted(set(block), reverse=True):
            if part % side:
                return f"{cut.what} {cut.size} / {tp} = {part:g} is {part / side:g} blocks of {side}"
    return ""


def cuts(size: Dimensions, head_dim: int, tp: int) -> list[Cut]:
    """The dimensions that are cut at this degree; at degree 1 only merged matrices are checked, and they fit."""
    if tp == 1:
        return []
    found = [Cut(MOE, size.moe_intermediate_size)] if size.n_routed_experts else []
    if not size.n_routed_experts or size.first_k_dense_replace:
        found.append(Cut(DENSE, size.intermediate_size))
    if size.kv_lora_rank:
        q_head = size.qk_nope_head_dim + size.qk_rope_head_dim
        found.append(Cut("query heads x dimension", size.num_attention_heads * q_head))
        found.append(Cut("kv_b rows", size.num_attention_heads * (size.qk_nope_head_dim + size.v_head_dim)))
        found.append(Cut("value heads x dimension", size.num_attention_heads * size.v_head_dim))
    elif head_dim:
        found.append(Cut("query heads x dimension", size.num_attention_heads * head_dim))
        found.append(Cut("key-value heads x dimension", max(size.num_key_value_heads, tp) * head_dim))
    return found
