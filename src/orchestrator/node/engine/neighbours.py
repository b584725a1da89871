"""What an operator should know of a serving node beside its engine's own words: GPU memory that others hold, and ranks
that are not bound to their GPU's NUMA node."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from orchestrator.node import supervision
from orchestrator.node.engine.gpus import GpuUse
from orchestrator.node.engine.tree import Rank

NOT_BOUND = "NUMA-NOT-BOUND"
STRANGER_BYTES = 1 << 30
"""What another process may hold unsaid: tools that look at a GPU hold less."""
_UNSHOWN_BYTES = 2 << 30
"""What may be in use beyond all processes that NVML shows: contexts that are being made, what the driver keeps."""
_ADDRESS = re.compile(r"(?P<domain>[0-9a-f]{4,8}):(?P<rest>[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
_ALLOWED = re.compile(r"^Cpus_allowed_list:\s*(\S+)$", re.MULTILINE)
_GIB = 1 << 30


def strangers(uses: Collection[GpuUse], ours: Collection[int]) -> Iterator[str]:
    """Who holds memory beside the engine on its GPUs, by the program's name alone. ours: process ids of the engine.
    Where NVML shows none of these, it counts in another PID namespace, and nothing is known."""
    for use in uses:
        if not any(pid in ours for pid, _ in use.processes):
            continue
        for pid, held in use.processes:
            if pid not in ours and held >= STRANGER_BYTES:
                program = supervision.title(pid).partition(" ")[0][-80:] or "not in our PID namespace"
                yield f"GPU {use.index}: process {pid} ({program}) holds {held / _GIB:.1f} GiB beside the engine"
        if (more := use.used - sum(held for _, held in use.processes)) >= _UNSHOWN_BYTES:
            yield f"GPU {use.index}: {more / _GIB:.1f} GiB are held beside the engine by what NVML does not show"


def unbound(ranks: Sequence[Rank], places: dict[int, str], root: str = "/") -> Iterator[str]:
    """One sentence on the ranks whose processes may run away from their GPU, the same on nodes that are alike. places:
    PCI addresses by GPU; what /proc and /sys do not tell is left out."""
    away = {rank.gpu: words for rank in ranks if rank.lives and (words := _away(rank, places.get(rank.gpu, ""), root))}
    if not away:
        return
    gpus = ", ".join(map(str, sorted(away)))
    subject = f"the rank of GPU {gpus}" if len(away) == 1 else f"the ranks of GPUs {gpus}"
    yield (
        f"{subject} may run on processors that are not at their GPU's NUMA node ({away[min(away)]}) [{NOT_BOUND}]: each"
        " launch of a kernel may cross the sockets; the engine binds its ranks only where `numactl` works (fix: install"
        " numactl, and allow set_mempolicy where it runs in a container)"
    )


def _away(rank: Rank, place: str, root: str) -> str:
    """'on 0-63, GPU 3 is at 32-63'; '' where it is bound, or that is unknown."""
    base, address = root.rstrip("/"), _ADDRESS.fullmatch(place.lower())
    if address is None:
        return ""
    beside = _read(f"{base}/sys/bus/pci/devices/{address['domain'][-4:]}:{address['rest']}/local_cpulist").strip()
    status = _ALLOWED.search(_read(f"{base}/proc/{rank.pid}/status"))
    if not beside or status is None or processors(status[1]) <= processors(beside):
        return ""
    return f"on {status[1][:60]}, GPU {rank.gpu} is at {beside[:60]}"


def processors(listed: str) -> frozenset[int]:
    """Of a list as the kernel writes it, 0-3,8; empty for what is none."""
    parts = [part.partition("-") for part in listed.split(",")]
    try:
        ends = [(int(first), int(last or first)) for first, _, last in parts]
    except ValueError:
        return frozenset()
    return frozenset(number for first, last in ends for number in range(first, min(last, first + 8192) + 1))


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""
