"""Whether a gang runs as one engine or as a replica on each node, and its layout, by the nodes' reports. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.model.inventory import GangSpec
from orchestrator.model.survivors import replicas_of
from orchestrator.protocol.layout import Layout
from orchestrator.protocol.report import RankReport


@dataclass(frozen=True, slots=True, order=True)
class LastRun:
    """The last run of a gang on one node. run_id: begins with the time of its start, so that it sorts by time."""

    alive: bool
    run_id: str
    gang: str


def last_run(gang: GangSpec, runs: Iterable[LastRun]) -> LastRun | None:
    """The last run of the gang or of one of its replicas; a live run comes before an ended one."""
    names = {gang.name, *(one.name for one in replicas_of(gang))}
    return max((run for run in runs if run.gang in names), default=None)


def stands_as_replicas(gang: GangSpec, runs: Iterable[LastRun]) -> bool:
    """Whether its replicas were started last. The only replica of a gang of one node is the gang itself."""
    last = last_run(gang, runs)
    return last is not None and last.gang != gang.name


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
