"""The IOMMU translates DMA of GPUs or cards."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RAILS
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="IOMMU-TRANSLATING",
    title="the IOMMU translates DMA",
    explain="With translation on, peer-to-peer packets go to the root complex to be translated.",
    reads=("/sys/bus/pci/devices/*/iommu_group (link)", "/sys/kernel/iommu_groups/*/type"),
    source="NCCL troubleshooting guide, PCI access control; Linux Documentation/ABI/testing/sysfs-kernel-iommu_groups",
    weight=26,
    needs=RAILS,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding per node whose GPUs or RDMA cards are in a group of type DMA or DMA-FQ."""
    for node in cluster.nodes:
        translating = list(_translating(node))
        if translating:
            yield Finding(
                id=RULE.id,
                severity=Severity.SLOW,
                node=node.name,
                devices=tuple(address for address, _ in translating),
                title=f"the IOMMU translates the DMA of {len(translating)} GPUs and cards",
                evidence=tuple(evidence for _, evidence in translating[:4]),
                effect=price(Traffic.THROUGH_ROOT),
                fix="boot with iommu=pt (or intel_iommu=off, amd_iommu=off) on the kernel command line, or disable"
                " VT-d/AMD-Vi in the BIOS",
            )


def _translating(node: Node) -> Iterator[tuple[str, str]]:
    watched = {gpu.key: gpu.address for gpu in node.topology.gpus}
    watched |= {port.key: port.address for port in node.rail_ports}
    for key, address in watched.items():
        if f"{key}/iommu_group" in node.snapshot.links:
            group = node.snapshot.realpath(f"{key}/iommu_group")
            kind = node.snapshot.text(f"{group}/type")
            if kind.startswith("DMA"):
                yield address, f"{group}/type = {kind} ({address})"
