"""The layout of a gang that runs, from its ranks' numbers. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.model.layout import Layout
from orchestrator.protocol.report import RankReport


def layout_of(nodes: Sequence[Sequence[RankReport]]) -> Layout | None:
    """nodes: each one's ranks. TP ranks are counted anew in every pipeline stage; degrees that don't divide ranks among
    processes (experts, attention) are not seen. None where a node tells of no rank: it may hold any."""
    if not nodes or not all(nodes):
        return None
    tensor = 1 + max(rank.tp_rank for ranks in nodes for rank in ranks)
    return Layout(
        tensor_parallel=tensor,
        pipeline_parallel=max(1, sum(map(len, nodes)) // tensor),
        nnodes=len(nodes),
        gpus_per_node=max(map(len, nodes)),
    )
