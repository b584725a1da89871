"""How much of a node's memory may hold weight files: the same arithmetic for a forecast and for the reading itself."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.protocol.message import Message
from orchestrator.protocol.report import PageCache
from orchestrator.protocol.staging import CacheOrder

GIB = 1 << 30
SYSTEM_BYTES = 8 * GIB
A_RANK_BYTES = 4 * GIB
"""Host memory of one rank's process with its libraries and pinned buffers: an allowance, not measured on L40S."""
KEPT = f"{SYSTEM_BYTES // GIB} GiB and {A_RANK_BYTES // GIB} GiB per rank"
"""In words."""


def room(total: int, available: int, ranks: int) -> int:
    """Bytes that may be filled with weight files: what is available, less what the system and the ranks need.

    total, available: MemTotal and MemAvailable in bytes (proc_meminfo(5); the latter counts what is cached already)
    ranks: engine processes of the node. At most a quarter of the memory is kept for them, so that small nodes have
    room too.
    """
    kept = min(SYSTEM_BYTES + A_RANK_BYTES * ranks, total // 4)
    return max(0, available - kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsAheadRequest(Message):
    """Weight files to read into the page cache beside a running engine. ranks: of the next one on this node."""

    order: CacheOrder
    ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsAheadLine(Message):
    """How far that is."""

    cache: PageCache
