"""Does it fit: weights and KV cache of the fullest GPU, with the arithmetic as text.

The parts are counted from the checkpoint's dimensions as SGLang lays them out: attention's A projections, the
router and the norms are whole on every rank, everything else is cut by TP; the KV cache of MLA is whole on every
rank. Attention data parallelism cuts attention over the ranks of one group alone. The pool is what the engine itself
computes (0.4.4: model_runner.profile_max_num_token; 0.5.23: mem_cache/kv_cache_configurator.py), with the static
fraction that the dialect knows.
Checked against the articles' log of DeepSeek-R1-Channel-INT8 at TP32: 21.27 GB weights, 201,723 tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.engines.cuts import attention_matrices, kept_whole
from orchestrator.engines.engine import Division, MemoryAsked
from orchestrator.engines.registry import engine_of
from orchestrator.model.gpu_facts import L40S
from orchestrator.model.plan import Memory
from orchestrator.model.profile import Dimensions, ModelProfile, Part, Stack
from orchestrator.planning.needs import with_needs
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.planned import Layout
from orchestrator.protocol.sizes import gib

GIB = 1 << 30
_MIB = 1 << 20
_ASSUMED_MIB = L40S.nvml_mib
"""What NVML says a 48 GB L40S has, where no GPU was seen: only what does not depend on it is shown then."""

Flags = Mapping[str, tuple[str, ...]]
"""Every flag of an engine's command line by its first spelling, with its values."""


def budget(
    profile: ModelProfile,
    stack: Stack,
    layout: Layout,
    *,
    flags: Flags,
    gpu_total: int | None,
    where: str,
    context: int | None = None,
    nvlink: bool = False,
) -> Memory:
    """The budget of the fullest GPU in bytes, as the engine computes it from its whole command line.

    flags: what the engine is started with, whoever asked for it; gpu_total: NVML's total, None where no GPU was seen;
    context: tokens that a request may have by config.json, None where unread; nvlink: the GPUs of a node may have it
    Raises InputError where the weights leave no room for a KV cache.
    """
    asked = asked_of(profile, layout, flags, gpu_total, nvlink=nvlink)
    division = engine_of(stack).memory(asked)
    weights = weights_per_gpu(profile, layout, division)
    per_token = kv_bytes_per_token(profile, layout, division)
    memory = Memory(gpu_total=gpu_total, weights=weights, kv_bytes_per_token=per_token)
    lines = _of_weights(profile, division, weights, per_token)
    if stack.device == "cpu" or gpu_total is None:
        lines.append("KV tokens: not calculated, the GPU memory was not read")
        return replace(memory, explanation=tuple(lines))
    before = gpu_total - division.taken
    base = gpu_total if division.of_total else before
    reserve = int(base * (1 - division.fraction))
    padding = int(weights * division.padding)
    room = before - weights - padding - reserve
    lines += [
        f"before the weights: {gib(gpu_total)} - {gib(division.taken)} (CUDA context, NCCL) = {gib(before)} GiB",
        division.explanation,
        f"reserved for graphs and activations: {gib(base)} x (1 - {division.fraction:g}) = {gib(reserve)} GiB",
        f"KV pool: {gib(before)} - {gib(weights)}{_blocks(padding, division)} - {gib(reserve)} = {gib(room)} GiB",
    ]
    if room < per_token:
        raise _does_not_fit(profile, layout, lines, where)
    tokens = _tokens(room, per_token, division, lines)
    table, words = _request_table(stack, asked, context, tokens)
    memory = replace(
        memory,
        static_fraction=division.fraction,
        kv_tokens=tokens,
        reserve=reserve,
        request_table=table,
        explanation=(*lines, *words, *_of_groups(asked, division, tokens)),
    )
    return with_needs(memory, profile, layout, division)


def _does_not_fit(profile: ModelProfile, layout: Layout, lines: Sequence[str], where: str) -> InputError:
    what = f"{profile.name} does not fit at {layout}: {'; '.join(lines)}"
    return InputError(what, where=where, fix="use more GPUs, or a smaller model")


def _tokens(room: int, per_token: int, division: Division, lines: list[str]) -> int:
    """How many the KV pool holds; the lines get how that was reckoned."""
    tokens = room // per_token
    lines.append(f"KV tokens: {gib(room)} GiB / {per_token:,} = {tokens:,}")
    if division.max_tokens is not None and division.max_tokens < tokens:
        tokens = division.max_tokens
        lines.append(f"KV tokens: {tokens:,} by --max-total-tokens")
    return tokens


def asked_of(
    profile: ModelProfile, layout: Layout, flags: Flags, gpu_total: int | None, *, nvlink: bool = False
) -> MemoryAsked:
    """What the engine's own arithmetic wants to know."""
    return MemoryAsked(
        flags=flags,
        layout=layout,
        gpu_mib=(gpu_total or 0) // _MIB or _ASSUMED_MIB,
        mla=bool(profile.dimensions.kv_lora_rank),
        vision=(profile.vision.layers, profile.vision.hidden_size) if profile.vision else None,
        nvlink=nvlink and layout.gpus_per_node > 1,
        whole_dense=layout.expert_parallel > 1 and kept_whole(profile, layout.tensor_parallel)[0],
    )


def _of_weights(profile: ModelProfile, division: Division, weights: int, per_token: int) -> list[str]:
    """What is known without a GPU."""
    draft = ", the draft's layer included" if division.draft else ""
    lines = [f"weights: {gib(weights)} GiB on the fullest GPU, calculated from the checkpoint's dimensions{draft}"]
    same = ", the same on every TP rank" if profile.dimensions.kv_lora_rank else ""
    lines.append(f"KV cache: {per_token:,} bytes per token{same}")
    if profile.attention == "hybrid":
        lines.append(_of_windows(profile, division))
    if profile.vision:
        lines.append(f"vision encoder: {gib(profile.vision.bytes)} GiB, one copy per rank, counted as weights")
    return lines


def _blocks(padding: int, division: Division) -> str:
    """' - 0.27 (allocator's blocks, 1.3% of the weights)', '' for none."""
    return f" - {gib(padding)} (allocator's blocks, {division.padding:.1%} of the weights)" if padding else ""


def _request_table(stack: Stack, asked: MemoryAsked, context: int | None, tokens: int) -> tuple[int | None, list[str]]:
    """Bytes of req_to_token, which is made after the KV pool and so out of the reserve; and words about it."""
    engine = engine_of(stack)
    if engine.request_table is None:
        return None, []
    length = asked.number("--context-length") or context
    if length is None or tokens == 0:
        return None, ["request table (req_to_token): not calculated, the context length was not read"]
    rows, columns = engine.request_table(asked, length, tokens)
    words = f"request table (req_to_token), out of the reserve: {rows:,} x {columns:,} x 4 bytes"
    return rows * columns * 4, [f"{words} = {gib(rows * columns * 4)} GiB"]


def _of_groups(asked: MemoryAsked, division: Division, tokens: int) -> list[str]:
    """What attention data parallelism divides, and what it multiplies."""
    groups = asked.layout.attention_data_parallel
    if groups == 1:
        return []
    words = f"attention in {groups} groups: each has a KV cache of {tokens:,} tokens of its own"
    if division.chunk is not None:
        words += f", prefills {division.chunk:,} tokens at once"
    if most := asked.number("--max-running-requests"):
        words += f", runs at most {max(1, most // groups)} requests"
    return [words]


_PLAIN = Division(fraction=0.0, explanation="")
"""Where no engine was asked: bf16, no draft, no windows."""


def kv_bytes_per_token(profile: ModelProfile, layout: Layout, division: Division = _PLAIN) -> int:
    """Bytes of one token's KV cache on one GPU of the stage with the most layers; bf16 where no division says else."""
    dims = profile.dimensions
    layers = -(-dims.num_hidden_layers // layout.pipeline_parallel) + dims.num_nextn_predict_layers * division.draft
    if dims.kv_lora_rank:
        return (dims.kv_lora_rank + dims.qk_rope_head_dim) * layers * division.kv_bytes
    heads = max(1, dims.num_key_value_heads // (layout.tensor_parallel // layout.attention_data_parallel))
    cell = 2 * heads * dims.head * division.kv_bytes
    windows = round(layers * profile.window_layers / dims.num_hidden_layers)
    return cell * (layers - windows) + int(division.window_share * cell * windows)


def _of_windows(profile: ModelProfile, division: Division) -> str:
    """How a model with several kinds of layers is counted."""
    if not profile.window_layers:
        return "KV cache: every layer counted as full attention; sliding-window layers need less"
    return (
        f"KV cache: {profile.window_layers} of {profile.dimensions.num_hidden_layers} layers have a sliding window, "
        f"and keep {division.window_share:g} tokens for each one of the others"
    )


def weights_per_gpu(profile: ModelProfile, layout: Layout, division: Division = _PLAIN) -> int:
    """Bytes of weights on the fullest GPU (the last stage: expert layers and the output head)."""
    dims, tensor, groups = profile.dimensions, layout.tensor_parallel, layout.attention_data_parallel
    staged = layout.pipeline_parallel > 1
    layers = -(-dims.num_hidden_layers // layout.pipeline_parallel)
    dense_before_experts = 0 if staged else dims.first_k_dense_replace
    dense = dense_before_experts if dims.n_routed_experts else layers
    whole_dense, whole_shared = kept_whole(profile, tensor) if layout.expert_parallel > 1 else (False, False)
    attention = _attention(profile, tensor // groups)
    sparse = _experts(profile, tensor, 1 if whole_shared else tensor)
    vocabulary = dims.vocab_size * dims.hidden_size * 2
    embedding = vocabulary // (1 if division.whole_embedding and groups > 1 else tensor // groups)
    return (
        layers * attention
        + (layers - dense) * sparse
        + dense * _mlp(profile, "dense", dims.intermediate_size, 1 if whole_dense else tensor)
        + dims.num_nextn_predict_layers * (attention + sparse + _projection(dims)) * division.draft
        + (profile.vision.bytes if profile.vision else 0)
        + vocabulary // tensor
        + embedding * (not staged)
    )


def routed_experts_per_gpu(profile: ModelProfile, layout: Layout) -> int:
    """Bytes of the routed experts in `weights_per_gpu`, scales included; without pipeline stages."""
    dims = profile.dimensions
    if not dims.n_routed_experts:
        return 0
    return (dims.num_hidden_layers - dims.first_k_dense_replace) * _routed(profile, layout.tensor_parallel)


def checkpoint_bytes(profile: ModelProfile) -> int:
    """Bytes of all weight files: the profile's figure, else counted from the dimensions (MTP layers included)."""
    if profile.bytes:
        return profile.bytes
    dims = profile.dimensions
    dense = dims.num_hidden_layers if not dims.n_routed_experts else dims.first_k_dense_replace
    layers = dims.num_hidden_layers + dims.num_nextn_predict_layers
    return (
        layers * _attention(profile, 1, absorbed=False)
        + (layers - dense) * _experts(profile, 1, 1)
        + dense * _mlp(profile, "dense", dims.intermediate_size, 1)
        + dims.num_nextn_predict_layers * _projection(dims)
        + (profile.vision.bytes if profile.vision else 0)
        + (2 + 2 * dims.num_nextn_predict_layers) * dims.vocab_size * dims.hidden_size * 2
    )


def _projection(dims: Dimensions) -> int:
    """Of one multi-token-prediction layer."""
    return 2 * dims.hidden_size * dims.hidden_size * 2


def _attention(profile: ModelProfile, ways: int, *, absorbed: bool = True) -> int:
    """One layer's attention. absorbed: with the bf16 halves of kv_b that MLA's decode keeps beside it."""
    matrices = list(attention_matrices(profile.dimensions, ways))
    kept = sum(2 * matrix.rows * matrix.columns for matrix in matrices if absorbed and matrix.part == "kv_b_proj")
    return kept + sum(_linear(profile, "attention", matrix.rows, matrix.columns) for matrix in matrices)


def _mlp(profile: ModelProfile, part: Part, inner: int, tensor: int) -> int:
    hidden = profile.dimensions.hidden_size
    return 2 * _linear(profile, part, inner // tensor, hidden) + _linear(profile, part, hidden, inner // tensor)


def _experts(profile: ModelProfile, tensor: int, shared: int) -> int:
    """One layer's router and experts. However experts are spread, a rank's share of the routed ones is 1/tensor;
    shared: how many ways the shared ones are cut."""
    dims = profile.dimensions
    if not dims.n_routed_experts:
        return 0
    router = dims.n_routed_experts * dims.hidden_size * 2
    return (
        router
        + _routed(profile, tensor)
        + dims.n_shared_experts * _mlp(profile, "shared", dims.moe_intermediate_size, shared)
    )


def _routed(profile: ModelProfile, tensor: int) -> int:
    """One layer's routed experts on one rank."""
    dims = profile.dimensions
    return dims.n_routed_experts * _mlp(profile, "experts", dims.moe_intermediate_size, tensor)


def _linear(profile: ModelProfile, part: Part, rows: int, columns: int) -> int:
    """Bytes of one weight matrix with its scales: float32, but bf16 for groups of int4 and one byte for MXFP4."""
    stored = profile.stored(part)
    if stored == "none":
        return rows * columns * 2
    if stored in ("int8-channel", "fp8-channel"):
        return rows * columns + rows * 4
    if stored in ("int4-group", "mxfp4"):
        return rows * columns // 2 + rows * -(-columns // profile.group) * (2 if stored == "int4-group" else 1)
    height, width = profile.block
    return rows * columns + -(-rows // height) * -(-columns // width) * 4
