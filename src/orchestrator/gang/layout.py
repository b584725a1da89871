"""The layout of a running gang, from the numbers of its ranks. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.protocol.layout import Layout
from orchestrator.protocol.report import RankReport


def layout_of(nodes: Sequence[Sequence[RankReport]]) -> Layout | None:
    """nodes: the ranks of each. TP ranks restart at 0 in every pipeline stage. Degrees that don't divide ranks among
    processes (experts, attention) can't be seen. None if a node reports no ranks: it may hold any."""
    if not nodes or not all(nodes):
        return None
    tensor = 1 + max(rank.tp_rank for ranks in nodes for rank in ranks)
    return Layout(
        tensor_parallel=tensor,
        pipeline_parallel=max(1, sum(map(len, nodes)) // tensor),
        nnodes=len(nodes),
        gpus_per_node=max(map(len, nodes)),
    )
