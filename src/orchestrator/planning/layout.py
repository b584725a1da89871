"""Which degrees of parallelism a checkpoint allows, with the arithmetic as text; which layout of a profile counts on a
gang's nodes, by name or by need; and whether the stack can serve the model there at all.

Rules and their sources, all sglang 0.5.23 (0.4.4 has the same checks):
heads divide by TP (srt/distributed/utils.py, ensure_divisibility); every quantised dimension that is cut by TP
ends on a block (srt/layers/quantization/fp8.py, validate_block_quant_shapes and Fp8MoEMethod.create_weights;
fp8_utils.validate_fp8_block_shape); the vocabulary is padded to multiples of 64 x TP when it does not divide
(vocab_parallel_embedding.py), so it never forbids a layout; TP x PP divides by the number of nodes. Expert parallelism
cuts an expert TP / EP ways (model_executor/model_runner_components/moe_ep_setup.py) and lets dense layers and shared
experts stay whole. Attention data parallelism cuts attention, and nothing else, TP / DP ways
(arg_groups/parallel_hook.py: handle_data_parallelism).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.engines.cuts import DENSE, MOE, misfits
from orchestrator.engines.engine import Engine
from orchestrator.engines.registry import engine_of
from orchestrator.model.engine_versions import holds_for
from orchestrator.model.gpu_facts import L40S
from orchestrator.model.profile import Dimensions, ModelProfile, ModelRefusal, NamedLayout, Stack
from orchestrator.model.topology import Gpu
from orchestrator.model.words import counted
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.planned import Layout
from orchestrator.protocol.staging import Asked, Canary
from orchestrator.topology.gpus import capability

ABILITIES = frozenset(("pipelines", "experts", "attention"))
"""What an engine version may be able to do beside tensor parallelism."""


def abilities(engine: Engine) -> frozenset[str]:
    """Those of ABILITIES that an engine's version has."""
    names = engine.names
    has = {"pipelines": names.pipeline_parallel, "experts": names.expert_parallel, "attention": engine.attention}
    return frozenset(ability for ability, by in has.items() if by is not None)


def short(layout: Layout) -> str:
    """How an operator asks for it with --layout."""
    return ",".join(f"{letters}{degree}" for letters, _, degree in _asked(layout))


def flags(layout: Layout) -> str:
    """The same, each degree by its option."""
    return " ".join(f"{option} {degree}" for _, option, degree in _asked(layout))


def _asked(layout: Layout) -> list[tuple[str, str, int]]:
    each = (
        ("pp", "--pp", layout.pipeline_parallel),
        ("tp", "--tp", layout.tensor_parallel),
        ("ep", "--ep", layout.expert_parallel),
        ("dp", "--attn-dp", layout.attention_data_parallel),
    )
    return [degree for degree in each if degree[2] > 1 or degree[0] == "tp"]


def pins(asked: Asked) -> dict[str, Any]:
    """The degrees that somebody chose, as a profile names them."""
    degrees = {
        "tensor_parallel": asked.tp,
        "pipeline_parallel": asked.pp,
        "expert_parallel": asked.ep,
        "attention_data_parallel": asked.attn_dp,
    }
    return {name: degree for name, degree in degrees.items() if degree is not None}


def usual(degrees: ModelProfile | NamedLayout, nodes: int, gpus_per_node: int) -> Layout:
    """A profile's degrees, or those of one of its layouts, on these nodes; without any, all GPUs as one tensor parallel
    group."""
    stages = degrees.pipeline_parallel or 1
    return Layout(
        tensor_parallel=degrees.tensor_parallel or max(1, nodes * gpus_per_node // stages),
        pipeline_parallel=stages,
        expert_parallel=degrees.expert_parallel or 1,
        attention_data_parallel=degrees.attention_data_parallel or 1,
        nnodes=nodes,
        gpus_per_node=gpus_per_node,
    )


def refuse(
    profile: ModelProfile,
    layout: Layout,
    able: frozenset[str],
    *,
    fits: Callable[[Layout], bool] = lambda _: True,
    where: str,
) -> None:
    """Raises InputError for a layout that does not work, with the arithmetic and what works instead.

    fits: whether a layout's weights leave room for a KV cache; only such ones are suggested
    """
    if against := reasons(profile, layout, able):
        raise InputError(
            f"{layout} does not work for {profile.name}: " + "; ".join(against),
            where=where,
            fix=_instead(profile, layout, able, fits),
        )


def reasons(profile: ModelProfile, layout: Layout, able: frozenset[str]) -> list[str]:
    """Why a layout does not work; empty if it does."""
    nodes, stages, layers = layout.nnodes, layout.pipeline_parallel, profile.dimensions.num_hidden_layers
    gpus, needed = nodes * layout.gpus_per_node, layout.tensor_parallel * stages
    against = []
    if needed != gpus:
        against.append(
            f"it needs {needed} GPUs, but the gang has {counted(nodes, 'node')} x {layout.gpus_per_node} = {gpus}"
        )
    if stages > 1 and "pipelines" not in able:
        against.append("this engine version has no pipeline parallelism")
    elif stages > layers:
        against.append(f"{layers} layers can't be split into {stages} stages")
    elif max(stages, nodes) % min(stages, nodes):
        against.append(f"{stages} stages over {nodes} nodes end in the middle of a node")
    if layout.expert_parallel > 1 and "experts" not in able:
        against.append("this engine version does not support this many expert-parallel ranks")
    if layout.attention_data_parallel > 1 and "attention" not in able:
        against.append("this engine version has no attention data parallelism")
    return against + obstacles(profile, layout.tensor_parallel, layout.expert_parallel, layout.attention_data_parallel)


def working(profile: ModelProfile, *, nodes: int, gpus_per_node: int, able: frozenset[str]) -> tuple[Layout, ...]:
    """Every TP x PP on exactly these GPUs that the checkpoint's arithmetic allows, least pipelining first; with
    the smallest EP where nothing but EP lifts a limit."""
    layouts, gpus = [], nodes * gpus_per_node
    for stages in range(1, min(gpus, profile.dimensions.num_hidden_layers if "pipelines" in able else 1) + 1):
        if gpus % stages or max(stages, nodes) % min(stages, nodes):
            continue  # of the last, a stage would end in the middle of a node
        tensor = gpus // stages
        experts = range(1, tensor + 1) if "experts" in able and profile.dimensions.n_routed_experts else (1,)
        expert = next((n for n in experts if tensor % n == 0 and not obstacles(profile, tensor, n)), None)
        if expert:
            degrees = {"tensor_parallel": tensor, "pipeline_parallel": stages, "expert_parallel": expert}
            layouts.append(Layout(**degrees, nnodes=nodes, gpus_per_node=gpus_per_node))
    return tuple(layouts)


def with_attention_a_node(profile: ModelProfile, layouts: Sequence[Layout], able: frozenset[str]) -> tuple[Layout, ...]:
    """After each of these layouts whose tensor parallel group spans nodes, the same with one attention group a node,
    where that works: attention then reduces inside a node, and each node has a KV cache of its own."""
    with_groups = []
    for each in layouts:
        with_groups.append(each)
        groups, rest = divmod(each.tensor_parallel, each.gpus_per_node)
        spans = "attention" in able and groups > 1 and not rest and each.attention_data_parallel == 1
        if spans and not obstacles(profile, each.tensor_parallel, each.expert_parallel, groups):
            with_groups.append(replace(each, attention_data_parallel=groups))
    return tuple(with_groups)


def _instead(profile: ModelProfile, asked: Layout, able: frozenset[str], fits: Callable[[Layout], bool]) -> str:
    """Layouts that work on these GPUs, not ranked: they were not measured."""
    nodes, gpus_per_node = asked.nnodes, asked.gpus_per_node
    plain = Layout(tensor_parallel=nodes * gpus_per_node, nnodes=nodes, gpus_per_node=gpus_per_node)
    all_gpus = asked.tensor_parallel * asked.pipeline_parallel == nodes * gpus_per_node
    wanted = (asked, plain) if all_gpus else (plain,)
    ways = list(_reblocked(profile, dict.fromkeys(wanted)))
    fitting = [*filter(fits, working(profile, nodes=nodes, gpus_per_node=gpus_per_node, able=ABILITIES))]
    if plain in fitting:
        ways.append(str(plain))
    others = [f"{layout} (--layout {short(layout)})" for layout in fitting if layout != plain]
    if others:
        newer = "" if able == ABILITIES else "; needs a stack with SGLang 0.5"
        ways.append(f"{', '.join(others[:5])} (not measured{newer})")
    if not ways:
        return "no layout works on this gang's GPUs; change the number of nodes or GPUs"
    return "use a layout that works: " + "; or ".join(ways)


_FINEST = 32
"""Numbers along K that one FP8 instruction of a tensor core takes (PTX ISA, mma.m16n8k32): no kernel has a smaller
block."""


def finer_block(profile: ModelProfile, tensor: int) -> int:
    """The largest smaller block that divides this one and lets the checkpoint be cut at this degree; 0 where none is
    needed or none helps."""
    side = profile.block[0]
    if profile.quantisation != "fp8-block" or not obstacles(profile, tensor):
        return 0
    sizes = [size for size in range(side // 2, _FINEST - 1, -1) if side % size == 0 and size % _FINEST == 0]
    cut = (size for size in sizes if not obstacles(replace(profile, block=(size, size)), tensor))
    return next(cut, 0)


def _reblocked(profile: ModelProfile, layouts: Iterable[Layout]) -> Iterator[str]:
    """How each of these degrees could be had by re-blocking, in words and as commands."""
    for layout in layouts:
        if layout.expert_parallel == 1 and (size := finer_block(profile, layout.tensor_parallel)):
            yield (
                f"re-block to {size}x{size} for {layout} (`checkpoint reblock --block {size}`, and `models add` where"
                " it has no profile)"
            )


def obstacles(profile: ModelProfile, tensor: int, expert: int = 1, attention: int = 1) -> list[str]:
    """Why these degrees can't be, one sentence of arithmetic each; empty where they can."""
    return list(_obstacles(profile, tensor, expert, attention))


def _obstacles(profile: ModelProfile, tensor: int, expert: int, attention: int) -> Iterator[str]:
    dims = profile.dimensions
    if tensor % attention:
        yield f"TP{tensor} is not divisible by attention DP{attention}"
        return
    together = tensor // attention
    if dims.num_attention_heads % together:
        yield f"{dims.num_attention_heads} attention heads are not divisible by {together}"
    if not dims.kv_lora_rank and max(dims.num_key_value_heads, together) % min(dims.num_key_value_heads, together):
        yield f"{dims.num_key_value_heads} key-value heads do not spread evenly over {together} ranks"
    feed_forward = {DENSE: tensor, MOE: tensor}
    if expert > 1:
        yield from _expert_obstacles(profile, tensor, expert)
        if tensor % expert:
            return
        feed_forward = {MOE: tensor // expert}  # dense layers stay whole where they do not fit
    cut = _cuts(dims, tensor)
    for what, ways in feed_forward.items():
        if what in cut:
            yield from misfits(profile, what, cut[what], ways)
    for what, size in _cuts(dims, together).items():
        if what not in (DENSE, MOE):
            yield from misfits(profile, what, size, together)


def _expert_obstacles(profile: ModelProfile, tensor: int, expert: int) -> Iterator[str]:
    experts = profile.dimensions.n_routed_experts
    if tensor % expert:
        yield f"TP{tensor} is not divisible by EP{expert}"
    if not experts:
        yield "it has no experts to distribute"
    elif experts % expert:
        yield f"{experts} experts are not divisible by {expert}"


def _cuts(size: Dimensions, tp: int) -> dict[str, int]:
    """The dimensions that are cut at this degree, by their names for people; at degree 1 only merged matrices are
    checked, and they fit."""
    if tp == 1:
        return {}
    heads, sizes = size.num_attention_heads, dict[str, int]()
    if size.n_routed_experts:
        sizes[MOE] = size.moe_intermediate_size
    if not size.n_routed_experts or size.first_k_dense_replace:
        sizes[DENSE] = size.intermediate_size
    if size.kv_lora_rank:
        sizes["query heads x dimension"] = heads * (size.qk_nope_head_dim + size.qk_rope_head_dim)
        sizes["kv_b rows"] = heads * (size.qk_nope_head_dim + size.v_head_dim)
        sizes["value heads x dimension"] = heads * size.v_head_dim
    elif size.head:
        sizes["query heads x dimension"] = heads * size.head
        sizes["key-value heads x dimension"] = max(size.num_key_value_heads, tp) * size.head
    return sizes


def degrees(size: Dimensions, block: tuple[int, int] | None) -> dict[int, str]:
    """Every tensor parallel degree up to 128 with the first reason against it, '' where it is allowed.

    block: the FP8 block (n, k), None where nothing is block-quantised
    """
    bare = ModelProfile(
        name="",
        source="",
        directory="",
        architecture="",
        attention="mla",
        canary=Canary(prompt=""),
        dimensions=size,
        quantisation="fp8-block" if block else "none",
        block=block or (0, 0),
    )
    return {tp: next(iter(obstacles(bare, tp)), "") for tp in (1, 2, 4, 8, 16, 32, 64, 128)}


def tensor_ranks(layout: Layout, node_rank: int) -> tuple[int, ...]:
    """The tensor parallel rank of each of a node's GPUs, in GPU order: world ranks run through the nodes in order,
    pipeline stage by stage (sglang srt/entrypoints/engine.py)."""
    per_node = layout.tensor_parallel * layout.pipeline_parallel // layout.nnodes
    first = node_rank * per_node
    return tuple(rank % layout.tensor_parallel for rank in range(first, first + per_node))


def laid_out(profile: ModelProfile, name: str, stack: Stack) -> ModelProfile:
    """The profile with this layout's degrees, flags and environment in the place of its own.

    Raises InputError for a name that the profile does not have, and for a layout that the stack's version can't do.
    """
    chosen = next((each for each in profile.layouts if each.name == name), None)
    where = f"command line: --layout {name}"
    if chosen is None:
        known = ", ".join(each.name for each in profile.layouts)
        raise InputError(
            f"the profile {profile.name} has no layout {name!r}",
            where=where,
            fix=f"use one of: {known}" if known else "this profile names no layouts: give the degrees",
        )
    if not holds_for(chosen.versions, engine_of(stack).version):
        raise InputError(
            f"the layout {name} needs SGLang {chosen.versions}, and the stack {stack.name} is {stack.engine_version}",
            where=where,
            fix="choose another stack with --stack, or another layout",
        )
    return _with(profile, chosen)


def _with(profile: ModelProfile, chosen: NamedLayout) -> ModelProfile:
    return replace(
        _at(profile, chosen),
        micro_batch=chosen.micro_batch,
        flags=(*profile.flags, *(("", flag, value) for flag, value in chosen.flags)),
        env=(*profile.env, *(("", variable, value) for variable, value in chosen.env)),
    )


def _at(profile: ModelProfile, degrees: NamedLayout | Layout) -> ModelProfile:
    return replace(
        profile,
        tensor_parallel=degrees.tensor_parallel,
        pipeline_parallel=degrees.pipeline_parallel,
        expert_parallel=degrees.expert_parallel,
        attention_data_parallel=degrees.attention_data_parallel,
    )


def on_one_node(profile: ModelProfile, gpus: int, stack: Stack) -> str:
    """The first layout that the profile names for exactly so many GPUs, '' for none: what a replica takes where nobody
    asked for another."""
    listed = (named for named in profile.layouts if holds_for(named.versions, engine_of(stack).version))
    return next((named.name for named in listed if named.tensor_parallel * named.pipeline_parallel == gpus), "")


def name_of(profile: ModelProfile, layout: Layout) -> str:
    """The name that the profile gives these degrees alone, without flags or environment beside them; '' for none."""
    plain = (each for each in profile.layouts if not each.flags and not each.env)
    return next((each.name for each in plain if usual(each, layout.nnodes, layout.gpus_per_node) == layout), "")


def refusal(profile: ModelProfile, stack: Stack, gpus: Iterable[Gpu] = ()) -> ModelRefusal | None:
    """Why this stack can't serve the model on these GPUs; an L40S is assumed where none is known."""
    least = min((capability(gpu) or L40S.sm for gpu in gpus), default=L40S.sm)
    return next(
        (
            each
            for each in profile.refused
            if holds_for(each.versions, engine_of(stack).version)
            and (not each.below or (stack.device == "cuda" and least < each.below))
        ),
        None,
    )


def refuse_model(profile: ModelProfile, stack: Stack, gpus: Iterable[Gpu], where: str) -> None:
    """Raises InputError with the reason where this stack can't serve the model on these GPUs."""
    against = refusal(profile, stack, gpus)
    if against is not None:
        raise InputError(
            f"{profile.name} can't be served by the stack {stack.name} here: {against.reason} ({against.source})",
            where=where,
            fix=_newer(against),
        )


def _newer(against: ModelRefusal) -> str:
    """What an operator can do about a refusal."""
    if against.below and against.versions:
        return f"use GPUs of compute capability {against.below / 10:g} or newer, another stack, or another model"
    if against.below:
        return f"use GPUs of compute capability {against.below / 10:g} or newer, or another model"
    return "choose another stack with --stack, or another model"


def adapted(
    profile: ModelProfile,
    stack: Stack,
    able: frozenset[str],
    *,
    nodes: int,
    gpus_per_node: int,
    fits: Callable[[ModelProfile, Layout], bool],
) -> ModelProfile:
    """The profile with a layout that these nodes can have; as it was where none works, for `layout.refuse` to say why.

    Its usual layout comes first, then its named layouts in its own order, then every TP x PP that the checkpoint's
    arithmetic allows, with the least pipelining first.
    fits: whether the weights of the profile with that layout leave room for a KV cache
    """
    by_arithmetic = working(profile, nodes=nodes, gpus_per_node=gpus_per_node, able=able)
    own = (_with(profile, named) for named in profile.layouts if holds_for(named.versions, engine_of(stack).version))
    for candidate in (profile, *own, *(_at(profile, layout) for layout in by_arithmetic)):
        layout = usual(candidate, nodes, gpus_per_node)
        if not reasons(candidate, layout, able) and fits(candidate, layout):
            return candidate
    return profile
