"""GPUDirect RDMA is not available, so every byte between card and GPU passes through host memory."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.snapshot import Snapshot
from orchestrator.rules.cluster import Cluster
from orchestrator.rules.registry import Rule
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="GDR-MISSING",
    title="GPUDirect RDMA is missing",
    explain="NCCL finds it through nvidia-peermem, or through dma-buf where the driver is NVIDIA's open kernel module.",
    reads=(
        "/sys/kernel/mm/memory_peers/nv_mem/version", "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
        "/sys/module/nvidia_peermem/version", "/proc/driver/nvidia/version",
    ),
    source="NCCL src/transport/net_ib/gdr.cc ncclIbGdrSupport, ncclIbDmaBufSupport",
    weight=25,
)  # fmt: skip

_PEERMEM = RULE.reads[:3]
_DRIVER = RULE.reads[3]


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding a node with usable rails; unknown where the driver's kind could not be read."""
    for name, topology, snapshot in cluster.nodes:
        if not topology.rdma or not topology.gpus or any(snapshot.exists(path) for path in _PEERMEM):
            continue
        driver = snapshot.text(_DRIVER)
        if "Open Kernel Module" in driver:
            continue
        yield _finding(name, snapshot, driver)


def _finding(name: str, snapshot: Snapshot, driver: str) -> Finding:
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW if driver else Severity.UNKNOWN,
        node=name,
        title="GPUDirect RDMA is missing: nvidia-peermem is not loaded"
        if driver
        else "whether GPUDirect RDMA works could not be read",
        evidence=(
            *(f"{path}: {snapshot.errors.get(path, 'does not exist')}" for path in _PEERMEM),
            f"{_DRIVER} = {driver.splitlines()[0] if driver else 'not readable'}",
        ),
        effect=price(Traffic.HOST_STAGED),
        fix="sudo modprobe nvidia-peermem (and add it to /etc/modules-load.d), or install NVIDIA's open kernel modules",
    )
