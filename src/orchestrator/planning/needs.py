"""What a rank needs of the memory that an engine keeps free beside weights and KV cache, by what was measured, and what
its CUDA graphs cost. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from orchestrator.engines.engine import Division, RankCost
from orchestrator.model.plan import Memory, Seconds
from orchestrator.model.profile import ModelProfile
from orchestrator.model.words import counted
from orchestrator.protocol.planned import Layout
from orchestrator.protocol.sizes import gib

GIB = 1 << 30
UNMEASURED = 3 * GIB // 2
"""Kept for what no measurement had: NCCL's buffers of 32 ranks, a draft, 0.5.17's prefill graphs. An allowance, until a
gang of 32 ranks was measured."""
KEPT_FREE = GIB
"""Of what was seen free on these nodes: for fragments, and for loads that were not seen yet."""
_MAY = "so this may stay unused:"
_WORTH = GIB // 2
"""Less than this is no reason to change a fraction."""
_RUNS = 2
"""Of each size of prefill that is captured: from 3,840 to 2,048 tokens a size took 7.0 to 3.7 s between two nodes."""
_NETWORK = (25e9, 2e9)
"""Bytes a second that a rank sends: an allowance for RDMA, and TCP as measured between two nodes (tests/slice)."""
_BF16 = 2
_HEADS, _HIDDEN, _LAYERS, _EXPERTS = 4, 7168, 61, 256
"""A rank of DeepSeek-V3 at TP32: its attention heads; hidden size, layers and routed experts of the model."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes of one rank. table: req_to_token, 0 where it was not calculated"""

    table: int
    graphs: int
    activations: int

    @property
    def total(self) -> int:
        """With what nobody measured yet."""
        return self.table + self.graphs + self.activations + UNMEASURED


def cost_of(profile: ModelProfile, layout: Layout, division: Division) -> RankCost | None:
    """What was measured of a rank with these shapes; None where it was of others."""
    dims = profile.dimensions
    shapes = (dims.hidden_size, dims.num_hidden_layers, dims.n_routed_experts)
    one_group = layout.pipeline_parallel == layout.attention_data_parallel == layout.expert_parallel == 1
    a_rank = dims.num_attention_heads == _HEADS * layout.tensor_parallel
    measured = shapes == (_HIDDEN, _LAYERS, _EXPERTS) and one_group and a_rank and not division.draft
    return division.cost if measured else None


def with_needs(memory: Memory, profile: ModelProfile, layout: Layout, division: Division) -> Memory:
    """A budget with what graphs cost and what of its reserve is needed, as far as either was measured."""
    cost = cost_of(profile, layout, division)
    count = len(division.graphs or ())
    budget = replace(memory, graphs=division.graphs)
    if cost is not None:
        least_s, most_s = cost.capture_s(count) if count else (0.0, 0.0)
        fast_s, slow_s = _between_nodes(cost, profile, layout, division)
        least_s, most_s = least_s + fast_s, most_s + slow_s
        budget = replace(
            budget,
            graph_bytes=count * cost.graph_bytes,
            capture_s=(round(least_s, 1), round(most_s, 1)),
            compile_s=cost.compile_s if count else (0.0, 0.0),
        )
    budget = replace(budget, explanation=(*budget.explanation, *_graph_words(budget, layout, cost)))
    if cost is None or cost.activations is None or division.chunk is None:
        return budget
    needs = Needs(memory.request_table or 0, budget.graph_bytes or 0, cost.activations(division.chunk))
    if needs.table:
        budget = _with_next(replace(budget, needed=needs.total), division)
    return replace(budget, explanation=(*budget.explanation, *_reserve_words(budget, needs, cost, division.chunk)))


def _between_nodes(cost: RankCost, profile: ModelProfile, layout: Layout, division: Division) -> Seconds:
    """A captured size of prefill runs before, with two all-reduces a layer, which cross the network here."""
    if cost.prefill_tokens is None or division.chunk is None or layout.nnodes == 1:
        return 0.0, 0.0
    dims, ranks = profile.dimensions, layout.tensor_parallel
    each = 2 * dims.num_hidden_layers * dims.hidden_size * _BF16 * 2 * (ranks - 1) / ranks
    sent = _RUNS * cost.prefill_tokens(division.chunk) * each
    return sent / _NETWORK[0], sent / _NETWORK[1]


def with_seen(memory: Memory, least_free: int | None) -> Memory:
    """A budget with what runs of its plan have left free on the fullest GPU, and the fraction that this proposes in the
    calculated one's place."""
    if least_free is None or memory.kv_tokens is None or memory.reserve is None:
        return memory
    fraction = fraction_for(memory, memory.reserve - least_free + KEPT_FREE)
    if fraction is None:
        return memory
    seen = f"measured on these nodes with this plan: at least {gib(least_free)} GiB of each GPU stayed free"
    budget = replace(memory, least_free=least_free, next_fraction=None, next_kv_tokens=None)
    kept = tuple(line for line in memory.explanation if not line.startswith(_MAY))
    if abs(least_free - KEPT_FREE) < _WORTH:
        return replace(budget, explanation=(*kept, seen))
    tokens = tokens_at(memory, fraction)
    proposed = (
        f"{seen}: `-- --mem-fraction-static {fraction:g}` would leave {gib(KEPT_FREE)} and give {tokens:,} KV tokens"
        f" instead of {memory.kv_tokens:,} (calculated; counts for the loads that were seen)"
    )
    return replace(budget, next_fraction=fraction, next_kv_tokens=tokens, explanation=(*kept, proposed))


def _graph_words(memory: Memory, layout: Layout, cost: RankCost | None) -> Iterator[str]:
    if memory.graphs is None:
        return
    if not memory.graphs:
        yield "decode graphs: none, so that every batch runs eager (the host launches each kernel)"
        return
    count, most = len(memory.graphs), memory.graphs[-1]
    costs = "what they cost is not measured for such a rank"
    if cost is not None and memory.capture_s is not None:
        least_s, most_s = memory.capture_s
        costs = f"about {gib(memory.graph_bytes or 0)} GiB of the reserve, {least_s:.0f} to {most_s:.0f} s of a start"
        if any(cost.compile_s):
            costs += f", {cost.compile_s[0]:.0f} to {cost.compile_s[1]:.0f} s more while kernel caches are empty"
        costs += f" (calculated from {cost.source})"
    yield f"decode graphs: {counted(count, 'batch size')} up to {most}: {costs}"
    each = f", {most} for each of {layout.shares} batches," if layout.shares > 1 else ""
    yield (
        f"more than {most * layout.shares} requests at once{each} run eager: the host launches each kernel of their"
        " steps"
    )


def fraction_for(memory: Memory, needed: int) -> float | None:
    """The static fraction that keeps so many bytes free, rounded down; None where the budget has no reserve."""
    if memory.reserve is None or memory.static_fraction is None or memory.static_fraction >= 1:
        return None
    return int((1 - needed * (1 - memory.static_fraction) / memory.reserve) * 1000) / 1000


def _with_next(memory: Memory, division: Division) -> Memory:
    """With the fraction that would leave just what is needed."""
    fraction = fraction_for(memory, memory.needed or 0)
    limited = division.max_tokens is not None or memory.kv_tokens is None
    if fraction is None or limited or (memory.reserve or 0) - (memory.needed or 0) < _WORTH:
        return memory
    return replace(memory, next_fraction=fraction, next_kv_tokens=tokens_at(memory, fraction))


def tokens_at(memory: Memory, fraction: float) -> int:
    """KV tokens with another static fraction, of a budget that has all its figures."""
    of = memory.static_fraction or 0.0
    base = (memory.reserve or 0) / (1 - of)
    return (memory.kv_tokens or 0) + int(base * (fraction - of)) // (memory.kv_bytes_per_token or 1)


def _reserve_words(memory: Memory, needs: Needs, cost: RankCost, chunk: int) -> Iterator[str]:
    held, unmeasured = "activations", "not measured: NCCL's buffers of 32 ranks"
    if cost.prefill_graphs:
        held = "prefill graphs and activations"
    else:
        unmeasured += ", prefill graphs"
    parts = (
        (needs.table, "request table"),
        (needs.graphs, "decode graphs"),
        (needs.activations, f"{held} of chunks of {chunk:,} tokens"),
        (UNMEASURED, unmeasured),
    )
    sum_of = " + ".join(f"{gib(size)} ({words})" for size, words in parts if size)
    beside = "" if needs.table else " beside the request table"
    yield f"needed of the reserve{beside}: {sum_of} = {gib(needs.total)} GiB, calculated from {cost.source}"
    if memory.next_fraction is not None:
        yield (
            f"{_MAY} {gib((memory.reserve or 0) - needs.total)} GiB: `-- --mem-fraction-static"
            f" {memory.next_fraction:g}` would give {memory.next_kv_tokens:,} KV tokens instead of"
            f" {memory.kv_tokens:,} (calculated, not measured on 32 ranks)"
        )
