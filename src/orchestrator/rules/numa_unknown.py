"""The firmware does not say which NUMA domain GPUs or cards belong to."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.rules.cluster import Cluster
from orchestrator.rules.registry import Rule
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="NUMA-UNKNOWN",
    title="GPUs have no NUMA domain",
    explain="With numa_node -1 NCCL hangs everything off one CPU: it no longer sees that the halves are far apart.",
    reads=("/sys/bus/pci/devices/*/numa_node", "/sys/devices/system/node/node*"),
    source="NCCL src/graph/xml.cc (numaid of the top PCI node), src/graph/paths.cc",
    weight=32,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding a node with several NUMA domains whose GPUs are in none."""
    for name, topology, _ in cluster.nodes:
        lost = [gpu for gpu in topology.gpus if gpu.numa_node < 0]
        if lost and len(topology.numa) > 1:
            yield Finding(
                id=RULE.id,
                severity=Severity.SLOW,
                node=name,
                devices=tuple(gpu.address for gpu in lost),
                title=f"{len(lost)} GPUs have no NUMA domain, the machine has {len(topology.numa)}",
                evidence=tuple(f"/sys/bus/pci/devices/{gpu.address}/numa_node = -1" for gpu in lost[:4]),
                effect="NCCL keeps traffic between the halves off the RDMA cards; " + price(Traffic.CARD_ON_ROOT_PORT),
                fix="turn on NUMA (Node Interleaving off, SRAT) in the BIOS, update the BIOS",
            )
