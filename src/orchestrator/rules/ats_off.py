"""A virtual machine whose cards may not translate addresses themselves."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RAILS
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.input import is_guest
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.config_space import config_space
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="ATS-OFF",
    title="ATS is off in a virtual machine",
    explain=(
        "In a virtual machine the IOMMU translates addresses. With Address Translation Services, a card asks it once"
        " and then sends peer-to-peer packets directly. On bare metal it does not matter, and is not checked."
    ),
    reads=("/proc/cpuinfo (flag hypervisor)", "/sys/bus/pci/devices/*/config (ATS, id 0x000F)"),
    source="NCCL troubleshooting guide, virtual machines: ATS on the network card is a must for GPU Direct RDMA",
    weight=75,
    needs=RAILS,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One note a virtual machine."""
    for node in cluster.nodes:
        off = {port.device: port.address for port in node.rail_ports if _is_off(node, port.key)}
        if off and is_guest(node):
            yield Finding(
                id=RULE.id,
                severity=Severity.NOTE,
                node=node.name,
                devices=tuple(off),
                title=f"ATS is off on {', '.join(off)}, in a virtual machine",
                evidence=tuple(f"/sys/bus/pci/devices/{address}/config: ATSCtl enable = 0" for address in off.values()),
                effect="if GPUDirect traffic passes through the IOMMU: " + price(Traffic.THROUGH_ROOT),
                fix="run `mlxconfig -d DEVICE set ATS_ENABLED=true`, then power-cycle the machine; the hypervisor"
                " must pass ATS through",
            )


def _is_off(node: Node, key: str) -> bool:
    return config_space(node.snapshot, key).ats_enabled is False
