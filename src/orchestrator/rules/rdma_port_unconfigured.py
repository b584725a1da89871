"""RDMA ports with a link and without an address that NCCL can use."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RdmaPort, Topology
from orchestrator.rules.cluster import Cluster, gpu_port
from orchestrator.rules.registry import Rule
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="RDMA-PORT-UNCONFIGURED",
    title="an RDMA port is up and has no RoCE v2 address",
    explain="RoCE v2 between nodes needs an IPv4 (or routable IPv6) GID; the kernel makes one per address.",
    reads=("/sys/class/infiniband/*/ports/*/gids/*", ".../gid_attrs/types/*", ".../gid_attrs/ndevs/*"),
    source="NCCL src/transport/net_ib ncclIbGetGidIndex",
    weight=21,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding a port; RoCE v1 only and no address at all are told apart."""
    for name, topology, _ in cluster.nodes:
        for port in topology.rdma:
            routable = any(gid.ipv4 and gid.type == "RoCE v2" for gid in port.gids)
            if gpu_port(port, topology) and port.active and port.link_layer == "Ethernet" and not routable:
                yield _finding(name, topology, port)


def _finding(name: str, topology: Topology, port: RdmaPort) -> Finding:
    version_1 = [gid for gid in port.gids if gid.ipv4 and "v1" in gid.type]
    interface = topology.interface(port.netdev)
    addresses = ", ".join(interface.ipv4) if interface else ""
    if version_1:
        title = f"{port.device} offers RoCE v1 only"
        fix = "allow RoCE v2 in the card's firmware (mlxconfig ROCE_CONTROL) or with cma_roce_mode -d " + port.device
    elif addresses:
        title = f"{port.device} has address {addresses} on {port.netdev} and no RoCE v2 GID for it"
        fix = f"ip link set {port.netdev} down && ip link set {port.netdev} up; then look at show_gids {port.device}"
    else:
        title = f"{port.device} ({port.netdev or 'no net device'}) is up and has no IPv4 address"
        fix = f"give {port.netdev or 'its net device'} an address in its rail's subnet (netplan), as its peers have"
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW,
        node=name,
        devices=(port.device, port.netdev) if port.netdev else (port.device,),
        title=title,
        evidence=(
            f"/sys/class/infiniband/{port.device}/ports/{port.port}/gids = "
            + (", ".join(f"{gid.index}: {gid.gid} ({gid.type or 'type unread'})" for gid in port.gids) or "none"),
            f"addresses of {port.netdev or '-'} = {addresses or 'none'}",
        ),
        effect=price(Traffic.HALF_THE_PORTS),
        fix=fix,
    )
