"""Which degrees of parallelism a checkpoint allows, with the arithmetic in words.

Rules and their sources, all sglang 0.5.23 (0.4.4 has the same checks):
heads divide by TP (srt/distributed/utils.py, ensure_divisibility); every quantised dimension that is cut by TP
ends on a block (srt/layers/quantization/fp8.py, validate_block_quant_shapes; fp8_utils.validate_fp8_block_shape);
the vocabulary is padded to multiples of 64 x TP when it does not divide (vocab_parallel_embedding.py), so it
never forbids a layout; TP x PP divides by the number of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from orchestrator.model.errors import InputError
from orchestrator.model.plan import Layout
from orchestrator.model.profile import ModelProfile


@dataclass(frozen=True, slots=True)
class Degrees:
    """Tensor and pipeline parallel degrees; their product is the number of GPUs."""

    tensor: int
    pipeline: int = 1

    def __str__(self) -> str:
        return f"TP{self.tensor}" if self.pipeline == 1 else f"PP{self.pipeline} x TP{self.tensor}"


def obstacles(profile: ModelProfile, tensor: int) -> tuple[str, ...]:
    """Why this tensor parallel degree can't be, one sentence of arithmetic each; empty where it can."""
    return tuple(_obstacles(profile, tensor))


def _obstacles(profile: ModelProfile, tensor: int) -> Iterator[str]:
    dims = profile.dimensions
    if dims.num_attention_heads % tensor:
        yield f"{dims.num_attention_heads} attention heads / {tensor} is not a whole number"
    mla = dims.kv_lora_rank > 0
    if not mla and max(dims.num_key_value_heads, tensor) % min(dims.num_key_value_heads, tensor):
        yield f"{dims.num_key_value_heads} key-value heads do not spread evenly over {tensor} ranks"
    for name, size in _cut_dimensions(profile):
        if size % tensor:
            yield f"{name} {size}/{tensor} is not a whole number"
        elif profile.quantisation == "fp8-block":
            share = size // tensor
            for block in dict.fromkeys(profile.block):
                if share % block:
                    yield f"{name} {size}/{tensor} = {share} is no multiple of the quantisation block {block}"


def _cut_dimensions(profile: ModelProfile) -> Iterator[tuple[str, int]]:
    """Every dimension that tensor parallelism cuts, by its name in config.json."""
    dims = profile.dimensions
    if not dims.n_routed_experts or dims.first_k_dense_replace:
        yield "intermediate_size", dims.intermediate_size
    if dims.n_routed_experts:
        yield "moe_intermediate_size", dims.moe_intermediate_size
    if dims.kv_lora_rank:
        heads = dims.num_attention_heads
        if dims.q_lora_rank:
            yield "q_b rows (heads x qk_head_dim)", heads * (dims.qk_nope_head_dim + dims.qk_rope_head_dim)
        yield "kv_b rows (heads x (nope + v))", heads * (dims.qk_nope_head_dim + dims.v_head_dim)
        yield "o columns (heads x v_head_dim)", heads * dims.v_head_dim


def working(profile: ModelProfile, *, gpus: int, nodes: int, pipelines: bool) -> tuple[Degrees, ...]:
    """Every TP x PP on exactly these GPUs that the checkpoint's arithmetic allows, least pipelining first."""
    found = []
    for pipeline in range(1, gpus + 1):
        if pipeline > 1 and not pipelines:
            break
        if gpus % pipeline or pipeline > profile.dimensions.num_hidden_layers:
            continue
        if max(pipeline, nodes) % min(pipeline, nodes):
            continue  # a stage would end in the middle of a node
        degrees = Degrees(gpus // pipeline, pipeline)
        if not obstacles(profile, degrees.tensor):
            found.append(degrees)
    return tuple(found)


def choose(
    profile: ModelProfile,
    *,
    nodes: int,
    gpus_per_node: int,
    pipelines: bool,
    tensor: int | None = None,
    pipeline: int | None = None,
    fits: Callable[[Layout], bool] = lambda _: True,
    where: str,
) -> Layout:
    """The layout: what was pinned, else the profile's, else all GPUs as one tensor parallel group.

    pipelines: the engine version can do pipeline parallelism
    fits:      whether a layout's weights leave room for a KV cache; only such ones are suggested
    Raises InputError with the arithmetic and what works instead.
    """
    gpus = nodes * gpus_per_node
    pipeline = pipeline or profile.pipeline_parallel or 1
    tensor = tensor or profile.tensor_parallel or max(1, gpus // pipeline)
    degrees = Degrees(tensor, pipeline)
    if reasons := _reasons(profile, degrees, nodes, gpus_per_node, pipelines):
        raise InputError(
            f"{degrees} does not work for {profile.name}: " + "; ".join(reasons),
            where=where,
            fix=_instead(profile, nodes, gpus_per_node, pipelines, fits),
        )
    return _layout(degrees, nodes, gpus_per_node)


def _layout(degrees: Degrees, nodes: int, gpus_per_node: int) -> Layout:
    return Layout(
        tensor_parallel=degrees.tensor,
        pipeline_parallel=degrees.pipeline,
        nnodes=nodes,
        gpus_per_node=gpus_per_node,
    )


def _reasons(profile: ModelProfile, degrees: Degrees, nodes: int, gpus_per_node: int, pipelines: bool) -> list[str]:
    gpus = nodes * gpus_per_node
    reasons = []
    if degrees.tensor * degrees.pipeline != gpus:
        reasons.append(
            f"it takes {degrees.tensor * degrees.pipeline} GPUs and the gang has"
            f" {nodes} nodes x {gpus_per_node} = {gpus}"
        )
    if degrees.pipeline > 1 and not pipelines:
        reasons.append("this engine version has no pipeline parallelism")
    elif degrees.pipeline > profile.dimensions.num_hidden_layers:
        reasons.append(f"{profile.dimensions.num_hidden_layers} layers can't be cut into {degrees.pipeline} stages")
    elif max(degrees.pipeline, nodes) % min(degrees.pipeline, nodes):
        reasons.append(f"{degrees.pipeline} stages over {nodes} nodes end in the middle of a node")
    reasons += obstacles(profile, degrees.tensor)
    return reasons


def _instead(
    profile: ModelProfile, nodes: int, gpus_per_node: int, pipelines: bool, fits: Callable[[Layout], bool]
) -> str:
    """What works, nothing ranked: nobody measured it."""
    gpus = nodes * gpus_per_node
    ways = []
    if profile.quantisation == "fp8-block" and max(profile.block) > 64:
        finer = Degrees(gpus)
        half = profile.block[0] // 2
        if all(size % gpus == 0 and (size // gpus) % half == 0 for _, size in _cut_dimensions(profile)):
            ways.append(f"re-block to {half} (`checkpoint reblock`) for {finer}")
    fitting = [
        degrees
        for degrees in working(profile, gpus=gpus, nodes=nodes, pipelines=True)
        if fits(_layout(degrees, nodes, gpus_per_node))
    ]
    plain = [str(degrees) for degrees in fitting if degrees.pipeline == 1]
    piped = [
        f"{degrees} (--pp {degrees.pipeline} --tp {degrees.tensor})" for degrees in fitting if degrees.pipeline > 1
    ]
    ways += plain
    if piped:
        stack = "not measured on L40S" if pipelines else "not measured on L40S; needs a stack with SGLang 0.5"
        ways.append(f"{', '.join(piped[:4])} ({stack})")
    if not ways:
        return "no layout on this gang's GPUs works; change the number of nodes or GPUs"
    return "what works: " + "; or ".join(ways)


def tensor_ranks(layout: Layout, node_rank: int) -> tuple[int, ...]:
    """The tensor parallel rank of each of a node's GPUs, in GPU order.

    World ranks run through the nodes in order, pipeline stage by stage (sglang srt/entrypoints/engine.py).
    """
    per_node = layout.tensor_parallel * layout.pipeline_parallel // layout.nnodes
    first = node_rank * per_node
    return tuple((first + index) % layout.tensor_parallel for index in range(per_node))
