"""The firmware does not report the NUMA domain of GPUs or cards, or reports a wrong one."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RAILS, Area
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="NUMA-UNKNOWN",
    title="the NUMA domain of GPUs or cards is unknown, or differs from their switch's",
    explain=(
        "With numa_node -1, NCCL attaches everything to one CPU and no longer sees that the halves are far apart. A"
        " device that reports another domain than its switch gets its processes on the wrong socket."
    ),
    reads=("/sys/bus/pci/devices/*/numa_node", "/sys/devices/system/node/node*"),
    source="NCCL src/graph/xml.cc (numaid of the top PCI node), src/graph/paths.cc",
    weight=32,
    needs=(*RAILS, Area.NUMA),
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """At most one finding of each kind a node, where the machine has several domains."""
    for node in cluster.nodes:
        if len(node.topology.numa) > 1:
            yield from _unknown(node)
            yield from _contradicting(node)


def _unknown(node: Node) -> Iterator[Finding]:
    lost = [gpu for gpu in node.topology.gpus if gpu.numa_node < 0]
    if lost:
        yield Finding(
            id=RULE.id,
            severity=Severity.SLOW,
            node=node.name,
            devices=tuple(gpu.address for gpu in lost),
            title=f"{len(lost)} GPUs have no NUMA domain; the machine has {len(node.topology.numa)} domains",
            evidence=tuple(f"/sys/bus/pci/devices/{gpu.address}/numa_node = -1" for gpu in lost[:4]),
            effect="NCCL keeps traffic between the halves off the RDMA cards; " + price(Traffic.CARD_ON_ROOT_PORT),
            fix="enable NUMA in the BIOS (Node Interleaving off, SRAT), or update the BIOS",
        )


def _contradicting(node: Node) -> Iterator[Finding]:
    domains = {switch.key: switch.numa_node for switch in node.topology.switches}
    places = [(gpu.address, gpu.numa_node, gpu.switch) for gpu in node.topology.gpus]
    places += [(port.address, port.numa_node, port.switch) for port in node.rail_ports]
    odd = [
        (address, own, domains[switch])
        for address, own, switch in places
        if switch in domains and 0 <= own != domains[switch] >= 0
    ]
    if odd:
        yield Finding(
            id=RULE.id,
            severity=Severity.SLOW,
            node=node.name,
            devices=tuple(address for address, *_ in odd),
            title=f"{', '.join(address for address, *_ in odd)} reports another NUMA domain than its switch",
            evidence=tuple(
                f"/sys/bus/pci/devices/{address}/numa_node = {own}, its switch's = {above}"
                for address, own, above in odd
            ),
            effect="memory and processes are placed on the far socket (not measured)",
            fix="update the BIOS; its _PXM tables are wrong",
        )
