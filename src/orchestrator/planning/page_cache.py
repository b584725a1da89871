"""Whether each node's memory can hold the weight files that it reads, so that a restart needs no disk. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from orchestrator.model.finding import Finding
from orchestrator.model.topology import Topology
from orchestrator.protocol.planned import Layout
from orchestrator.protocol.severity import Severity
from orchestrator.protocol.sizes import gib

ID = "PAGE-CACHE-SMALL"
GIB = 1 << 30
SYSTEM_BYTES, A_RANK_BYTES = 8 * GIB, 4 * GIB
"""Host memory that is kept for the system, and for one rank's process with its libraries and pinned buffers: an
allowance, not measured on L40S. At most a quarter of the memory is kept, so that small nodes have room too."""
KEPT = f"{SYSTEM_BYTES // GIB} GiB and {A_RANK_BYTES // GIB} GiB per rank"
"""In words."""
FAST_DISK, SLOW_DISK = 5e9, 1e9
"""Bytes a second of one good NVMe disk, and of one over a 10 Gb/s network: what the price is counted at."""


def to_read(model_bytes: int, layout: Layout) -> int:
    """Files of the checkpoint that one node reads: all of them, of a pipeline those of its stages."""
    return model_bytes * -(-layout.pipeline_parallel // layout.nnodes) // layout.pipeline_parallel


@dataclass(frozen=True, slots=True)
class PageCacheFit:
    """One node. needed: bytes of the weight files that it reads at a start; room: bytes that its page cache may hold
    beside the engine."""

    needed: int
    room: int

    @property
    def fits(self) -> bool:
        """A restart needs no disk."""
        return self.needed <= self.room


Fits = Mapping[str, PageCacheFit]
"""By node, of those whose memory and whose files are known."""


def fits(model_bytes: int, layout: Layout, names: Iterable[str], topologies: Mapping[str, Topology]) -> Fits:
    """What each of these nodes reads beside what its page cache may hold. model_bytes: 0 where they are unknown"""
    needed, ranks = to_read(model_bytes, layout), layout.tensor_parallel * layout.pipeline_parallel // layout.nnodes
    kept = SYSTEM_BYTES + A_RANK_BYTES * ranks
    seen = {name: sum(domain.memory_bytes for domain in topologies[name].numa) for name in names if name in topologies}
    rooms = {name: total - min(kept, total // 4) for name, total in seen.items() if total and needed}
    return {name: PageCacheFit(needed, room) for name, room in rooms.items()}


def words(nodes: Fits) -> str:
    """One line for a gang; '' where nothing is known."""
    if not nodes:
        return ""
    least = min(nodes.values(), key=lambda fit: fit.room)
    short = [name for name, fit in nodes.items() if not fit.fits]
    fit = f"they do not fit on {', '.join(short)}" if short else "they fit"
    read, room = _rounded(least.needed), _rounded(least.room)
    return f"page cache: {read} GiB of weight files per node, room for {room} GiB (calculated): {fit}"


def findings(nodes: Fits) -> Iterator[Finding]:
    """A note for each node that reads some of its files from a disk at every start."""
    for name, fit in nodes.items():
        if (rest := fit.needed - fit.room) <= 0:
            continue
        yield Finding(
            id=ID,
            severity=Severity.NOTE,
            node=name,
            title=f"{_rounded(fit.needed)} GiB of weight files do not fit into the page cache:"
            f" room for {_rounded(fit.room)} GiB beside the engine",
            evidence=(f"MemTotal less {KEPT}, an allowance",),
            effect=f"each start reads {_rounded(rest)} GiB from the disk again: {rest / FAST_DISK:.0f} s at 5 GB/s,"
            f" {rest / SLOW_DISK:.0f} s at 1 GB/s (calculated)",
            fix="add memory, or use a layout with pipeline stages, whose nodes read their own layers only",
        )


def _rounded(count: int) -> str:
    return gib(count, 0 if count >= 10 * GIB else 1)
