"""RDMA ports whose addresses are in other rails' networks than those of their peers in the same place."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_interface

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RAILS, RdmaPort
from orchestrator.rules.support.cluster import Cluster, Node, odd_in_place
from orchestrator.rules.support.registry import Rule

RULE = Rule(
    id="RAIL-CROSSED",
    title="a rail is crossed",
    explain="The ports in the same place on every node form a rail and share a subnet. With a crossed cable or"
    " address, ports connect to the wrong peers, or to none.",
    reads=("PCI place of each RDMA port", "addresses of its net device"),
    source="comparison with peers; NCCL_CROSS_NIC in NCCL's documentation",
    weight=34,
    needs=RAILS,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding per node, with its ports whose subnet is not the one that most nodes have in that place."""
    for group in cluster.peers:
        for node, places in odd_in_place(group, _network):
            yield _finding(node.name, {port: (own, common) for port, own, common in places.values()})


def _network(node: Node, port: RdmaPort) -> str | None:
    interface = node.interfaces.get(port.netdev)
    return str(ip_interface(interface.ipv4[0]).network) if interface and interface.ipv4 else None


def _finding(name: str, odd: dict[RdmaPort, tuple[str, str]]) -> Finding:
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW,
        node=name,
        devices=tuple(word for port in odd for word in (port.device, port.netdev)),
        title="; ".join(
            f"{port.device} ({port.netdev}) is in {own}, its peers in the same place are in {common}"
            for port, (own, common) in odd.items()
        ),
        evidence=tuple(
            f"address of {port.netdev} is in {own}; PCI address = {port.address}" for port, (own, _) in odd.items()
        ),
        effect="NCCL pairs ports that can't reach each other: ibv_modify_qp fails with 110 (ETIMEDOUT), or traffic"
        " crosses the spine switch",
        fix="swap the two cables or the two addresses"
        if len(odd) == 2
        else "give it an address in the rail of its place",
    )
