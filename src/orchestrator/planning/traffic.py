"""Bytes that cross the network between nodes for one generated token, by layout. Calculated from dimensions; pure."""

from __future__ import annotations

from itertools import pairwise

from orchestrator.model.profile import Dimensions
from orchestrator.protocol.layout import Layout

REDUCES_A_LAYER = 2
"""All-reduces of a layer: after attention, and after the feed-forward part."""
_BYTES_A_NUMBER = 2
HANDED_OVER = 2
"""Tensors that a pipeline stage hands to the next: hidden states and residual (PPProxyTensors of SGLang's models)."""


def bytes_a_token(dimensions: Dimensions, layout: Layout, *, whole_reduces: int = REDUCES_A_LAYER) -> int:
    """What all nodes together send to each other per token.

    Two all-reduces a layer where a tensor parallel group spans nodes: in a ring of its ranks each link carries
    2 (n - 1) / n of the tensor, and as many links cross nodes as the group has nodes. Between stages on different nodes
    each rank sends its part of hidden states and residual once (parallel_state.py, send_tensor_dict).

    whole_reduces: those of a layer that go over the whole group where attention has groups of its own; what is left of
        the two goes over a token's own group
    """
    tensor = layout.tensor_parallel
    number = dimensions.hidden_size * _BYTES_A_NUMBER
    whole = whole_reduces if layout.attention_data_parallel > 1 else REDUCES_A_LAYER
    total = whole * _reduce(tensor, layout.gpus_per_node)
    total += (REDUCES_A_LAYER - whole) * _reduce(tensor // layout.attention_data_parallel, layout.gpus_per_node)
    total *= dimensions.num_hidden_layers * number
    return int(total) + crossings(layout) * HANDED_OVER * number


def crossings(layout: Layout) -> int:
    """How often a token goes from a stage on one node to the next stage on another."""
    firsts = [stage * layout.tensor_parallel // layout.gpus_per_node for stage in range(layout.pipeline_parallel)]
    return sum(before != after for before, after in pairwise(firsts))


def _reduce(ranks: int, gpus_per_node: int) -> float:
    """Tensors that cross nodes in one all-reduce of neighbouring ranks."""
    spanned = -(-ranks // gpus_per_node)
    return spanned * 2 * (ranks - 1) / ranks if spanned > 1 else 0.0
