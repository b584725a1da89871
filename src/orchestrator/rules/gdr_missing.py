"""GPUDirect RDMA is not available, so every byte between card and GPU passes through host memory."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RAILS
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.registry import Rule, unjudged
from orchestrator.rules.support.transport_cost import OLDEST_WITH_DMA_BUF, PEERMEM, has_gpudirect, kernel
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="GDR-MISSING",
    title="GPUDirect RDMA is missing",
    explain=(
        "NCCL uses nvidia-peermem, or dma-buf with NVIDIA's open kernel module and kernel 5.12 or newer. Without"
        " either, NCCL still uses the cards, but copies through host memory."
    ),
    reads=(
        "/sys/kernel/mm/memory_peers/nv_mem/version", "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
        "/sys/module/nvidia_peermem/version", "/proc/driver/nvidia/version", "uname -r",
    ),
    source="NCCL src/transport/net_ib/gdr.cc ncclIbGdrSupport, ncclIbDmaBufSupport",
    weight=25,
    needs=RAILS,
)  # fmt: skip

_DRIVER = RULE.reads[3]
_FOLDERS = ("/sys/kernel/mm/memory_peers", "system")
"""The folder that is listed for them, and the part of a look that reads them."""


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding per node with RDMA and NVIDIA's GPUs; unknown where the driver's kind could not be read."""
    for node in cluster.nodes:
        if not node.rail_ports or not node.nvml_devices:
            continue
        if has_gpudirect(node):
            continue
        unread = {path: why for path in (*PEERMEM, *_FOLDERS) if (why := node.snapshot.unread(path))}
        if unread:
            evidence = (f"{path}: {why}" for path, why in unread.items())
            yield unjudged(RULE, node, "what provides GPUDirect RDMA", evidence)
        else:
            yield _finding(node)


def _finding(node: Node) -> Finding:
    snapshot, driver = node.snapshot, node.snapshot.text(_DRIVER)
    major, minor = kernel(node)
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW if driver else Severity.UNKNOWN,
        node=node.name,
        title="GPUDirect RDMA is missing: nvidia-peermem is not loaded"
        if driver
        else "whether GPUDirect RDMA works could not be read",
        evidence=(
            *(f"{path}: {snapshot.errors.get(path, 'does not exist')}" for path in PEERMEM),
            f"{_DRIVER} = {driver.splitlines()[0] if driver else 'not readable'}",
            *([f"uname -r = {major}.{minor}; dma-buf needs 5.12"] if (major, minor) < OLDEST_WITH_DMA_BUF else []),
        ),
        effect=price(Traffic.HOST_STAGED),
        fix="run `sudo modprobe nvidia-peermem` and add it to /etc/modules-load.d, or install NVIDIA's open kernel"
        " modules",
    )
