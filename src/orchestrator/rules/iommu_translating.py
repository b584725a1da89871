"""The IOMMU translates DMA of GPUs or cards."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RAILS
from orchestrator.rules.support.acs import acs
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.input import is_guest
from orchestrator.rules.support.registry import Rule
from orchestrator.rules.support.transport_cost import direct
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="IOMMU-TRANSLATING",
    title="the IOMMU translates DMA",
    explain=(
        "With translation on, peer-to-peer packets go to the root complex to be translated. NVIDIA supports neither"
        " peer-to-peer between GPUs nor GPUDirect RDMA through it on bare metal: it stops where the plan uses them,"
        " unless ACS was read and redirects nothing there. In a virtual machine CUDA supports it."
    ),
    reads=(
        "/sys/bus/pci/devices/*/iommu_group (link)",
        "/sys/kernel/iommu_groups/*/type",
        "/proc/cpuinfo (flag hypervisor)",
        "/sys/bus/pci/devices/*/config (ACS)",
    ),
    source="CUDA C++ Programming Guide, IOMMU on Linux; GPUDirect RDMA, Supported Systems, IOMMUs; nccl issue 1999",
    weight=26,
    needs=RAILS,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding per node whose GPUs or RDMA cards are in a group of type DMA or DMA-FQ; a stop where what the plan
    uses is known to fail."""
    for node in cluster.nodes:
        translating = list(_translating(node))
        if translating:
            broken = _broken(cluster, node)
            yield Finding(
                id=RULE.id,
                severity=Severity.STOP if broken else Severity.SLOW,
                node=node.name,
                devices=tuple(address for address, _ in translating),
                title=f"the IOMMU translates the DMA of {len(translating)} GPUs and cards",
                evidence=tuple(evidence for _, evidence in translating[:4]),
                effect=f"{' and '.join(broken)} through it is not supported on bare metal: NCCL hangs or fails, or"
                " data is silently wrong"
                if broken
                else price(Traffic.THROUGH_ROOT),
                fix="boot with iommu=pt (or intel_iommu=off, amd_iommu=off) on the kernel command line, or disable"
                " VT-d/AMD-Vi in the BIOS",
            )


def _broken(cluster: Cluster, node: Node) -> tuple[str, ...]:
    """What is planned and known to fail; () too where ACS lets the switches themselves route it."""
    redirecting, cut_off = acs(node)
    routed = node.gpu_switches and not redirecting and not cut_off
    return () if is_guest(node) or routed else direct(cluster, node)


def _translating(node: Node) -> Iterator[tuple[str, str]]:
    watched = {gpu.key: gpu.address for gpu in node.topology.gpus}
    watched |= {port.key: port.address for port in node.rail_ports}
    for key, address in watched.items():
        if f"{key}/iommu_group" in node.snapshot.links:
            group = node.snapshot.realpath(f"{key}/iommu_group")
            kind = node.snapshot.text(f"{group}/type")
            if kind.startswith("DMA"):
                yield address, f"{group}/type = {kind} ({address})"
