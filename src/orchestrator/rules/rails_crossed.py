"""An RDMA port whose address lies in another rail's network than its peers' in the same place."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_interface

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RdmaPort, Topology
from orchestrator.rules.cluster import Cluster, gpu_port, majority
from orchestrator.rules.registry import Rule

RULE = Rule(
    id="RAIL-CROSSED",
    title="a rail is crossed",
    explain="The ports in the same place on every node form a rail and share a subnet; a crossed cable or address "
    "makes ports talk to the wrong peers, or to none.",
    reads=("PCI place of each RDMA port", "addresses of its net device"),
    source="comparison with peers; NCCL_CROSS_NIC in NCCL's documentation",
    weight=34,
)
Place = tuple[str, int, int]


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding for each port whose subnet is not the one that most nodes have in that place."""
    rails: dict[Place, dict[str, tuple[RdmaPort, str]]] = {}
    for name, topology, _ in cluster.nodes:
        for place, port in _places(topology):
            interface = topology.interface(port.netdev) if port.netdev else None
            if interface and interface.ipv4:
                network = str(ip_interface(interface.ipv4[0]).network)
                rails.setdefault(place, {})[name] = (port, network)
    for by_node in rails.values():
        most = majority({name: network for name, (_, network) in by_node.items()})
        if most is None:
            continue
        common, odd = most
        for name, network in odd.items():
            port = by_node[name][0]
            yield Finding(
                id=RULE.id,
                severity=Severity.SLOW,
                node=name,
                devices=(port.device, port.netdev),
                title=f"{port.device} ({port.netdev}) is in {network}, its peers in the same place are in {common}",
                evidence=(f"address of {port.netdev} = {network}", f"PCI address = {port.address}"),
                effect="NCCL pairs ports that can't reach each other: ibv_modify_qp fails with 110, or traffic crosses "
                "the spine",
                fix="swap the two cables or the two addresses",
            )


def _places(topology: Topology) -> Iterator[tuple[Place, RdmaPort]]:
    """Ports with a place that is comparable between nodes: which switch, which card below it, which function."""
    switches = {switch.key: index for index, switch in enumerate(topology.switches)}
    seen: dict[tuple[str, str], int] = {}
    for port in sorted((p for p in topology.rdma if gpu_port(p, topology)), key=lambda p: p.address):
        where = f"switch {switches[port.switch]}" if port.switch in switches else "root"
        card = seen.setdefault((where, port.address.rpartition(".")[0]), len(seen))
        yield (where, card, int(port.address.rpartition(".")[2] or "0", 16)), port
