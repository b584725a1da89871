"""What NCCL will make of the nodes: the groups that its log should show."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.doctor.rules.support.cluster import Cluster, Node
from orchestrator.loading.resources import Library
from orchestrator.model.errors import InputError
from orchestrator.topology.distance import Groups, gpu_groups, nccl_log
from orchestrator.topology.stated import TEXT

VERSIONS = ("2.21.5", "2.30.7")
"""What torch 2.5.1 (the articles' stack) and torch 2.14.1 (today's) bring; taken where the stack does not say."""


@dataclass(frozen=True, slots=True)
class NcclExpectation:
    """One gang under one version of NCCL.

    nodes, local_ranks: `nNodes` and the largest `localRanks` of NCCL's INFO line
    halves:             per node: its GPU groups, and why
    """

    gang: str
    version: str
    nodes: int
    local_ranks: int
    halves: Mapping[str, Groups]


def expected(cluster: Cluster, stack: str | None = None) -> tuple[NcclExpectation, ...]:
    """Every gang of two or more nodes whose GPUs are known, under the version of its stack, else under both."""
    return tuple(
        _expected(gang, version)
        for gang in (tuple(node for node in one if not node.spec.spare) for one in cluster.gangs)
        if len(gang) > 1 and any(node.gpus for node in gang) and not any(map(_is_told_in_part, gang))
        for version in _versions(stack or gang[0].spec.stack)
    )


def _is_told_in_part(node: Node) -> bool:
    return any(one.path == TEXT for one in node.topology.unread)


def _expected(gang: Sequence[Node], version: str) -> NcclExpectation:
    """NCCL sees the GPUs that the gang uses, not all that the bus shows. Where one node has no usable RDMA port, it
    takes sockets for all, and no node falls apart."""
    over_rdma = all(node.usable for node in gang)
    numbers = tuple(int(part) for part in version.split("."))
    halves = {
        node.name: gpu_groups(
            replace(node.topology, gpus=node.gpus, rdma=node.topology.rdma if over_rdma else ()), numbers
        )
        for node in gang
    }
    nodes, ranks = nccl_log(halves.values())
    return NcclExpectation(gang[0].spec.gang, version, nodes, ranks, halves)


def _versions(stack: str | None) -> tuple[str, ...]:
    if stack:
        with contextlib.suppress(InputError):
            version = Library.stack(stack).nccl_version
            if version and all(part.isdecimal() for part in version.split(".")):
                return (version,)
    return VERSIONS
