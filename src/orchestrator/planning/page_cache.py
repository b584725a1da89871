"""Whether each node's memory can hold the weight files that it reads, so that a restart needs no disk. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.inventory import GangSpec
from orchestrator.model.plan import Layout
from orchestrator.model.topology import Topology
from orchestrator.protocol import page_cache

ID = "PAGE-CACHE-SMALL"
GIB = 1 << 30
FAST_DISK, SLOW_DISK = 5e9, 1e9
"""Bytes a second of one good NVMe disk, and of one over a 10 Gb/s network: what the price is counted at."""


def rooms(gang: GangSpec, layout: Layout, topologies: Mapping[str, Topology]) -> dict[str, int]:
    """Bytes that the page cache of each node may hold beside the engine, of nodes whose memory was read."""
    ranks = layout.tensor_parallel * layout.pipeline_parallel // layout.nnodes
    seen = {node.name: _memory(topologies[node.name]) for node in gang.nodes if node.name in topologies}
    return {name: page_cache.room(total, total, ranks) for name, total in seen.items() if total}


def to_read(model_bytes: int, layout: Layout) -> int:
    """Weight files that one node reads: all of them, of a pipeline those of its stages."""
    return model_bytes * -(-layout.pipeline_parallel // layout.nnodes) // layout.pipeline_parallel


def words(needed: int, rooms_: Mapping[str, int]) -> str:
    """One line for the plan; '' where no node's memory was read."""
    if not rooms_ or not needed:
        return ""
    least = min(rooms_.values())
    fit = "they fit" if least >= needed else f"they do not fit on {', '.join(short(needed, rooms_))}"
    return f"page cache: {_gib(needed)} GiB of weight files per node, room for {_gib(least)} GiB (calculated): {fit}"


def short(needed: int, rooms_: Mapping[str, int]) -> list[str]:
    """Nodes that can't hold what they read."""
    return [name for name, room in rooms_.items() if room < needed]


def findings(needed: int, rooms_: Mapping[str, int]) -> Iterator[Finding]:
    """A note for each node that reads some of its files from a disk at every start."""
    for name in short(needed, rooms_):
        yield Finding(
            id=ID,
            severity=Severity.NOTE,
            node=name,
            title=f"{_gib(needed)} GiB of weight files do not fit into the page cache: room for {_gib(rooms_[name])}"
            " GiB beside the engine",
            evidence=("MemTotal less 8 GiB and 4 GiB per rank, an allowance",),
            effect=_price(needed - rooms_[name]),
            fix="add memory, or use a layout with pipeline stages, whose nodes read their own layers only",
        )


def _price(rest: int) -> str:
    fast, slow = rest / FAST_DISK, rest / SLOW_DISK
    return (
        f"each start reads {_gib(rest)} GiB from the disk again: {fast:.0f} s at 5 GB/s, {slow:.0f} s at 1 GB/s"
        " (calculated)"
    )


def _memory(topology: Topology) -> int:
    return sum(domain.memory_bytes for domain in topology.numa)


def _gib(count: int) -> str:
    return f"{count / GIB:.0f}" if count >= 10 * GIB else f"{count / GIB:.1f}"
