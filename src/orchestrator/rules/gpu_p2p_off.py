"""GPUs that NCCL would connect directly and that may not reach each other's memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import PLACES, PathType
from orchestrator.rules.support.cluster import Cluster, Node, whole
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.bandwidth import Version, p2p_level
from orchestrator.topology.distance import Distances
from orchestrator.topology.pci import small_number
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="GPU-P2P-OFF",
    title="GPUs can't access each other's memory",
    explain=(
        "NCCL asks NVML whether reads and writes between two GPUs work. If not, all data between them passes through"
        " host memory. Checked for every pair that NCCL would connect directly: up to PXB by default, farther on AMD"
        " with two GPUs or with NCCL before 2.23."
    ),
    reads=("NVML nvmlDeviceGetP2PStatus (read, write)",),
    source="NCCL src/graph/paths.cc ncclTopoCheckP2p; NVML nvmlGpuP2PStatus_t",
    weight=22,
    needs=PLACES,
)
_STATUS = {
    1: "chipset not supported", 2: "GPU not supported", 3: "root port's topology not supported",
    4: "disabled by a registry key", 5: "not supported", 6: "unknown",
}  # fmt: skip


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding per node, with the GPUs of all pairs."""
    for node in cluster.nodes:
        broken = list(_broken(node, cluster.nccl_version(node)))
        if broken:
            gpus = sorted({index for one, other, *_ in broken for index in (one, other)})
            paths = "/".join(path.name for path in sorted({path for _, _, path, _ in broken}))
            addresses = {gpu.index: gpu.address for gpu in node.topology.gpus}
            yield Finding(
                id=RULE.id,
                severity=Severity.SLOW,
                node=node.name,
                devices=tuple(addresses[index] for index in gpus),
                title=f"{len(broken)} pair{'s' if len(broken) > 1 else ''} of GPUs ({paths}) can't access each other"
                f" directly (GPUs {', '.join(map(str, gpus))})",
                evidence=tuple(words for *_, words in broken[:6]),
                effect="NCCL copies between them through host memory; " + price(Traffic.CARD_ON_ROOT_PORT),
                fix="check the driver's version and parameters (NVreg_*), ACS and the IOMMU;"
                " `nvidia-smi topo -p2p rw` shows all pairs",
            )


def _broken(node: Node, nccl: Version) -> Iterator[tuple[int, int, PathType, str]]:
    keys = {gpu.index: gpu.key for gpu in node.topology.gpus if gpu.index >= 0}
    distances, farthest = Distances(node.topology), p2p_level(node.topology, nccl)
    for one, other, status in _statuses(node):
        bad = {way: value for way, value in status.items() if whole(value)}
        path = distances.path_type(keys.get(one, ""), keys.get(other, "")) if bad else PathType.DIS
        if path <= farthest:
            words = ", ".join(f"{way} {value} ({_STATUS.get(value, 'unknown')})" for way, value in bad.items())
            yield one, other, path, f"NVML of GPU {one}: nvmlDeviceGetP2PStatus to GPU {other}: {words}"


def _statuses(node: Node) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
    """Each pair of GPUs that NVML described, by index, with its statuses for 'read' and 'write'."""
    for device in node.nvml_devices:
        one, others = device.get("index"), device.get("p2p")
        if isinstance(one, int) and isinstance(others, Mapping):
            yield from ((one, small_number(str(other)), status) for other, status in others.items()
                        if isinstance(status, Mapping))  # fmt: skip
