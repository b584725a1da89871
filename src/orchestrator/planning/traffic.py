"""Bytes that cross the network between nodes for one generated token, by layout. Calculated from dimensions; pure."""

from __future__ import annotations

from itertools import pairwise

from orchestrator.model.plan import Layout
from orchestrator.model.profile import Dimensions

_REDUCES_A_LAYER = 2
_BYTES_A_NUMBER = 2
_HANDED_OVER = 2
"""Tensors that a pipeline stage hands to the next: hidden states and residual (PPProxyTensors of SGLang's models)."""


def bytes_a_token(dimensions: Dimensions, layout: Layout) -> int:
    """What all nodes together send to each other for a token.

    Two all-reduces a layer where a tensor parallel group spans nodes: in a ring of its ranks each link carries
    2 (n - 1) / n of the tensor, and as many links cross nodes as the group has nodes. Between stages on different nodes
    each rank sends its part of hidden states and residual once (parallel_state.py, send_tensor_dict).
    """
    tensor, stages = layout.tensor_parallel, layout.pipeline_parallel
    number = dimensions.hidden_size * _BYTES_A_NUMBER
    spanned = -(-tensor // layout.gpus_per_node)
    total = 0.0
    if spanned > 1:
        reduces = dimensions.num_hidden_layers * _REDUCES_A_LAYER
        total += reduces * spanned * 2 * (tensor - 1) / tensor * number
    firsts = [stage * tensor // layout.gpus_per_node for stage in range(stages)]
    crossings = sum(before != after for before, after in pairwise(firsts))
    return int(total) + crossings * _HANDED_OVER * number
