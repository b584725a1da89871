"""What a network test should measure on this hardware, with the source of each figure; nothing if unknown.

Between GPUs: NCCL's own constants (topology.distance) and what the articles measured on 8 L40S. Between nodes: the
rates of the ports less headers. TCP between nodes: nobody has measured what NCCL makes of it, so nothing is expected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.model.benchmark import Between
from orchestrator.model.topology import Gpu, PathType, Topology
from orchestrator.nettest.messages import ALL_REDUCE, NettestStep
from orchestrator.nettest.schedule import Place
from orchestrator.nettest.verdict import Expectation
from orchestrator.topology.distance import Bandwidths, Distances, Groups, Version, gpu_groups

LESS_HEADERS = 0.92
"""Of a port's rate at RoCE MTU 4096 (line rate less headers)."""
NVLINK_SHARE = 0.6
"""Of NCCL's constant for all NVLinks between two GPUs: one sender and one receiver do not fill them."""
ACROSS_SOCKETS_GBS = 11.0
OVER_RDMA_GBS = 19.0
_ALL_REDUCE_RIGHT_US = {14336: 48.0, 57344: 63.0, 458752: 158.0, 1835008: 283.0}
_OF_RANKS, _OF_NODES = 32, 4
_ARTICLES = "the articles, 8 L40S a node"
_CONSTANTS = "NCCL's constants for this path"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHardware:
    """What a node's figures follow from. rdma: the plan's transport between nodes is RDMA over the ports of `rate`

    rate_gbps: of all ports that the plan uses on this node, together
    """

    topology: Topology
    nccl: Version
    rdma: bool = False
    rate_gbps: float = 0.0


def expectations(
    steps: Sequence[NettestStep], places: Sequence[Place], machines: Mapping[str, NodeHardware]
) -> dict[tuple[Between, int], Expectation]:
    """By what is measured, and bytes of an all-reduce (us) or sending rank (Gb/s)."""
    where = {rank: place for place in places for rank in place.ranks}
    found: dict[tuple[Between, int], Expectation] = {}
    for step in steps:
        between = Between(step.between)
        if step.kind == ALL_REDUCE:
            found.update(_all_reduces(step, between, places, machines))
            continue
        for start, end in step.groups:
            here, there = where[start], where[end]
            if here.node not in machines or there.node not in machines or not here.gpus:
                continue
            near = here is there
            figure = _inside(here, start, end, machines[here.node]) if near else _outside(here, there, machines)
            if figure is not None:
                found[between, start] = figure
    return found


def _inside(place: Place, start: int, end: int, machine: NodeHardware) -> Expectation | None:
    one, two = (_gpu(place, rank, machine.topology) for rank in (start, end))
    if one is None or two is None:
        return None
    path = Distances(machine.topology).path_type(one.key, two.key)
    if path is PathType.DIS:
        return None
    gbs = Bandwidths(machine.topology, machine.nccl).between(one.key, two.key)
    if path is PathType.NVL:
        return _gbps(gbs * NVLINK_SHARE, "calculated", f"{NVLINK_SHARE:g} of {_CONSTANTS}")
    if path <= PathType.PXB:
        return _gbps(gbs, "calculated", _CONSTANTS)
    if machine.rdma and _apart(gpu_groups(machine.topology, machine.nccl), one.index, two.index):
        return _gbps(min(gbs, OVER_RDMA_GBS), "measured", f"{_ARTICLES}: across the sockets over GPUDirect RDMA")
    return _gbps(min(gbs, ACROSS_SOCKETS_GBS), "measured", f"{_ARTICLES}: across the sockets through the CPUs")


def _apart(node: Groups, one: int, two: int) -> bool:
    return not any(one in group and two in group for group in node.groups)


def _outside(here: Place, there: Place, machines: Mapping[str, NodeHardware]) -> Expectation | None:
    """All GPUs of a node send at once and share its ports."""
    ends = machines[here.node], machines[there.node]
    rate = min(machine.rate_gbps for machine in ends)
    if not all(machine.rdma for machine in ends) or not rate:
        return None
    value = rate * LESS_HEADERS / len(here.ranks)
    source = f"{LESS_HEADERS:.0%} of {rate:g} Gb/s, shared by {len(here.ranks)} GPUs".replace("%", " %")
    return Expectation(value, "calculated", source)


def _all_reduces(
    step: NettestStep, between: Between, places: Sequence[Place], machines: Mapping[str, NodeHardware]
) -> Iterator[tuple[tuple[Between, int], Expectation]]:
    """Only for the case that was calculated."""
    ranks = sum(len(place.ranks) for place in places)
    rdma = all(place.node in machines and machines[place.node].rdma for place in places)
    if between is not Between.ALL or (ranks, len(places)) != (_OF_RANKS, _OF_NODES) or not rdma:
        return
    for size in step.bytes:
        if size in _ALL_REDUCE_RIGHT_US:
            source = "NCCL's tuning model for 4 nodes of 8 GPUs, not measured"
            yield (between, size), Expectation(_ALL_REDUCE_RIGHT_US[size], "calculated", source)


def _gpu(place: Place, rank: int, topology: Topology) -> Gpu | None:
    index = place.gpus[place.ranks.index(rank)]
    return next((gpu for gpu in topology.gpus if gpu.index == index), None)


def _gbps(gbs: float, basis: str, source: str) -> Expectation | None:
    return Expectation(gbs * 8, basis, source) if gbs else None
