"""Which degrees of parallelism a checkpoint allows, with the arithmetic as text.

Rules and their sources, all sglang 0.5.23 (0.4.4 has the same checks):
heads divide by TP (srt/distributed/utils.py, ensure_divisibility); every quantised dimension that is cut by TP
ends on a block (srt/layers/quantization/fp8.py, validate_block_quant_shapes; fp8_utils.validate_fp8_block_shape);
the vocabulary is padded to multiples of 64 x TP when it does not divide (vocab_parallel_embedding.py), so it
never forbids a layout; TP x PP divides by the number of nodes. Expert parallelism cuts an expert TP / EP ways
(model_executor/model_runner_components/moe_ep_setup.py) and lets dense layers and shared experts stay whole. Attention
data parallelism cuts attention, and nothing else, TP / DP ways (arg_groups/parallel_hook.py: handle_data_parallelism).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.model.errors import InputError
from orchestrator.model.profile import ModelProfile, NamedLayout, Part
from orchestrator.planning.parallel import DENSE, MOE, Cut, cuts
from orchestrator.protocol.layout import Layout, degrees_words


@dataclass(frozen=True, slots=True)
class Degrees:
    """Tensor and pipeline parallel degrees, whose product is the number of GPUs; expert parallel ones; and attention
    data parallel ones: the groups into which the tensor parallel ranks are divided for attention."""

    tensor: int
    pipeline: int = 1
    expert: int = 1
    attention: int = 1

    def __str__(self) -> str:
        return degrees_words(self.tensor, self.pipeline, self.expert, self.attention)

    @property
    def short(self) -> str:
        """How an operator asks for it with --layout."""
        each = (("pp", self.pipeline), ("tp", self.tensor), ("ep", self.expert), ("dp", self.attention))
        return ",".join(f"{name}{degree}" for name, degree in each if degree > 1 or name == "tp")

    @property
    def flags(self) -> str:
        """The same, each degree by its option."""
        words = [f"--pp {self.pipeline}"] if self.pipeline > 1 else []
        words.append(f"--tp {self.tensor}")
        words += [f"--ep {self.expert}"] if self.expert > 1 else []
        return " ".join(words + ([f"--attn-dp {self.attention}"] if self.attention > 1 else []))


@dataclass(frozen=True, slots=True)
class Abilities:
    """What an engine version can do beside tensor parallelism."""

    pipelines: bool = True
    experts: bool = True
    attention: bool = True


def degrees_of(layout: Layout | NamedLayout) -> Degrees:
    """A layout's degrees."""
    return Degrees(
        layout.tensor_parallel, layout.pipeline_parallel, layout.expert_parallel, layout.attention_data_parallel
    )


def head_dim(profile: ModelProfile) -> int:
    """Size of one attention head of a model without MLA."""
    dims = profile.dimensions
    return dims.head_dim or dims.hidden_size // dims.num_attention_heads


def kept_whole(profile: ModelProfile, tensor: int) -> tuple[bool, bool]:
    """Whether (dense layers, shared experts) must be complete on every rank where experts are spread: their cut
    does not end on a block."""
    dims = profile.dimensions
    return (
        bool(dims.first_k_dense_replace) and bool(_misfit(profile, DENSE, dims.intermediate_size, tensor)),
        bool(dims.n_shared_experts) and bool(_misfit(profile, MOE, dims.moe_intermediate_size, tensor, "shared")),
    )


def obstacles(profile: ModelProfile, tensor: int, expert: int = 1, attention: int = 1) -> tuple[str, ...]:
    """Why these degrees can't be, one sentence of arithmetic each; empty where they can."""
    return tuple(_obstacles(profile, tensor, expert, attention))


def _obstacles(profile: ModelProfile, tensor: int, expert: int, attention: int) -> Iterator[str]:
    dims = profile.dimensions
    if tensor % attention:
        yield f"TP{tensor} is not divisible by attention DP{attention}"
        return
    together = tensor // attention
    if dims.num_attention_heads % together:
        yield f"{dims.num_attention_heads} attention heads are not divisible by {together}"
    mla = dims.kv_lora_rank > 0
    if not mla and max(dims.num_key_value_heads, together) % min(dims.num_key_value_heads, together):
        yield f"{dims.num_key_value_heads} key-value heads do not spread evenly over {together} ranks"
    if expert > 1:
        yield from _expert_obstacles(profile, tensor, expert)
        if tensor % expert:
            return
    ways = {MOE: tensor // expert, DENSE: tensor}
    of_attention = [cut for cut in _quantised_cuts(profile, together) if cut.what not in ways]
    for cut in (*(cut for cut in _quantised_cuts(profile, tensor) if cut.what in ways), *of_attention):
        if expert > 1 and cut.what == DENSE:
            continue  # stays whole where it does not fit
        yield from _misfit(profile, cut.what, cut.size, ways.get(cut.what, together))


def _expert_obstacles(profile: ModelProfile, tensor: int, expert: int) -> Iterator[str]:
    experts = profile.dimensions.n_routed_experts
    if tensor % expert:
        yield f"TP{tensor} is not divisible by EP{expert}"
    if not experts:
        yield "it has no experts to distribute"
    elif experts % expert:
        yield f"{experts} experts are not divisible by {expert}"


def _quantised_cuts(profile: ModelProfile, tensor: int) -> list[Cut]:
    """The feed-forward parts first: they are what people meet."""
    return sorted(
        cuts(profile.dimensions, head_dim(profile), tensor), key=lambda cut: (cut.what != DENSE, cut.what != MOE)
    )


_PARTS: Mapping[str, Part] = {MOE: "experts", DENSE: "dense"}
"""Which part of a model a cut dimension is of; all others are attention's."""
_MARLIN_TILE = 64
"""A share of an expert in groups of int4 must be a multiple of it: check_moe_marlin_supports_layer in sglang 0.5.23."""


def _misfit(profile: ModelProfile, what: str, size: int, ways: int, part: Part | None = None) -> list[str]:
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


def working(profile: ModelProfile, *, gpus: int, nodes: int, able: Abilities) -> tuple[Degrees, ...]:
    """Every TP x PP on exactly these GPUs that the checkpoint's arithmetic allows, least pipelining first; with
    the smallest EP where nothing but EP lifts a limit."""
    found = []
    for pipeline in range(1, gpus + 1):
        if pipeline > 1 and not able.pipelines:
            break
        if gpus % pipeline or pipeline > profile.dimensions.num_hidden_layers:
            continue
        if max(pipeline, nodes) % min(pipeline, nodes):
            continue  # a stage would end in the middle of a node
        tensor = gpus // pipeline
        experts = range(1, tensor + 1) if able.experts and profile.dimensions.n_routed_experts else (1,)
        expert = next((n for n in experts if tensor % n == 0 and not obstacles(profile, tensor, n)), None)
        if expert:
            found.append(Degrees(tensor, pipeline, expert))
    return tuple(found)


def with_attention_a_node(
    profile: ModelProfile, degrees: Sequence[Degrees], *, gpus_per_node: int, able: Abilities
) -> tuple[Degrees, ...]:
    """After each of these degrees whose tensor parallel group spans nodes, the same with one attention group a node,
    where that works: attention then reduces inside a node, and each node has a KV cache of its own."""
    found = []
    for each in degrees:
        found.append(each)
        groups, rest = divmod(each.tensor, gpus_per_node)
        spans = able.attention and groups > 1 and not rest and each.attention == 1
        if spans and not obstacles(profile, each.tensor, each.expert, groups):
            found.append(replace(each, attention=groups))
    return tuple(found)


def choose(
    profile: ModelProfile,
    *,
    nodes: int,
    gpus_per_node: int,
    able: Abilities,
    tensor: int | None = None,
    pipeline: int | None = None,
    expert: int | None = None,
    attention: int | None = None,
    fits: Callable[[Layout], bool] = lambda _: True,
    where: str,
) -> Layout:
    """The layout: what was pinned, else the profile's, else all GPUs as one tensor parallel group.

    fits: whether a layout's weights leave room for a KV cache; only such ones are suggested
    Raises InputError with the arithmetic and what works instead.
    """
    gpus = nodes * gpus_per_node
    pipeline = pipeline or profile.pipeline_parallel or 1
    tensor = tensor or profile.tensor_parallel or max(1, gpus // pipeline)
    degrees = Degrees(
        tensor, pipeline, expert or profile.expert_parallel or 1, attention or profile.attention_data_parallel or 1
    )
    if against := reasons(profile, degrees, nodes, gpus_per_node, able):
        raise InputError(
            f"{degrees} does not work for {profile.name}: " + "; ".join(against),
            where=where,
            fix=instead(profile, nodes, gpus_per_node, able, fits),
        )
    return layout_of(degrees, nodes, gpus_per_node)


def layout_of(degrees: Degrees, nodes: int, gpus_per_node: int) -> Layout:
    """These degrees on these nodes."""
    return Layout(
        tensor_parallel=degrees.tensor,
        pipeline_parallel=degrees.pipeline,
        expert_parallel=degrees.expert,
        attention_data_parallel=degrees.attention,
        nnodes=nodes,
        gpus_per_node=gpus_per_node,
    )


def reasons(profile: ModelProfile, degrees: Degrees, nodes: int, gpus_per_node: int, able: Abilities) -> list[str]:
    """Why these degrees do not work on these nodes; empty if they do."""
    gpus = nodes * gpus_per_node
    found = []
    if degrees.tensor * degrees.pipeline != gpus:
        found.append(
            f"it needs {degrees.tensor * degrees.pipeline} GPUs, but the gang has {nodes} nodes x {gpus_per_node} ="
            f" {gpus}"
        )
    if degrees.pipeline > 1 and not able.pipelines:
        found.append("this engine version has no pipeline parallelism")
    elif degrees.pipeline > profile.dimensions.num_hidden_layers:
        found.append(f"{profile.dimensions.num_hidden_layers} layers can't be split into {degrees.pipeline} stages")
    elif max(degrees.pipeline, nodes) % min(degrees.pipeline, nodes):
        found.append(f"{degrees.pipeline} stages over {nodes} nodes end in the middle of a node")
    if degrees.expert > 1 and not able.experts:
        found.append("this engine version does not support this many expert-parallel ranks")
    if degrees.attention > 1 and not able.attention:
        found.append("this engine version has no attention data parallelism")
    found += obstacles(profile, degrees.tensor, degrees.expert, degrees.attention)
    return found


def instead(
    profile: ModelProfile, nodes: int, gpus_per_node: int, able: Abilities, fits: Callable[[Layout], bool]
) -> str:
    """Layouts that work on these GPUs, not ranked: they were not measured."""
    gpus = nodes * gpus_per_node
    ways = []
    if finer := _finer_block(profile, gpus):
        ways.append(f"re-block to {finer} (`checkpoint reblock`) for {Degrees(gpus)}")
    fitting = [
        degrees
        for degrees in working(profile, gpus=gpus, nodes=nodes, able=Abilities())
        if fits(layout_of(degrees, nodes, gpus_per_node))
    ]
    ways += [str(degrees) for degrees in fitting if degrees == Degrees(gpus)]
    others = [f"{degrees} (--layout {degrees.short})" for degrees in fitting if degrees != Degrees(gpus)]
    if others:
        newer = "" if able == Abilities() else "; needs a stack with SGLang 0.5"
        ways.append(f"{', '.join(others[:5])} (not measured{newer})")
    if not ways:
        return "no layout works on this gang's GPUs; change the number of nodes or GPUs"
    return "use a layout that works: " + "; or ".join(ways)


def _finer_block(profile: ModelProfile, tensor: int) -> int:
    """The block size, half or a quarter of this one, at which plain TP on all GPUs works; 0 where none is needed
    or none helps."""
    if profile.quantisation != "fp8-block" or not obstacles(profile, tensor):
        return 0
    sizes = [cut.size for cut in _quantised_cuts(profile, tensor)]
    halves = (profile.block[0] // 2, profile.block[0] // 4)
    return next((block for block in halves if block >= 32 and all(size % (tensor * block) == 0 for size in sizes)), 0)


def tensor_ranks(layout: Layout, node_rank: int) -> tuple[int, ...]:
    """The tensor parallel rank of each of a node's GPUs, in GPU order."""
    return tuple(rank % layout.tensor_parallel for rank in world_ranks(layout, node_rank))


def world_ranks(layout: Layout, node_rank: int) -> tuple[int, ...]:
    """The world rank of each of a node's GPUs, in GPU order: they run through the nodes in order, pipeline stage by
    stage (sglang srt/entrypoints/engine.py)."""
    per_node = layout.tensor_parallel * layout.pipeline_parallel // layout.nnodes
    first = node_rank * per_node
    return tuple(range(first, first + per_node))
