"""Several RDMA ports of one node in one subnet, with the kernel answering for all of them on any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import ip_interface

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RAILS, RdmaPort
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.ports import ipv4_setting
from orchestrator.rules.support.registry import Rule

RULE = Rule(
    id="RAILS-SHARE-SUBNET",
    title="several RDMA ports of a node share a subnet",
    explain=(
        "By default, Linux answers ARP for any of its addresses on any interface, so peers may send to the wrong"
        " port. Use one subnet per rail with routes between them, or set arp_ignore and arp_announce."
    ),
    reads=("addresses", "/proc/sys/net/ipv4/conf/{all,INTERFACE}/{arp_ignore,arp_announce,rp_filter}"),
    source="Linux Documentation/networking/ip-sysctl.rst; NVIDIA's advice on several ports in one IP subnet",
    weight=56,
    needs=RAILS,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One note for each shared subnet of a node whose settings do not keep the ports apart."""
    for node in cluster.nodes:
        subnets: dict[str, list[RdmaPort]] = {}
        for port in node.rail_ports:
            interface = node.interfaces.get(port.netdev)
            for text in interface.ipv4 if interface else ():
                subnets.setdefault(str(ip_interface(text).network), []).append(port)
        for subnet, ports in subnets.items():
            if len({port.netdev for port in ports}) > 1 and not all(_kept_apart(node, port) for port in ports):
                yield _finding(node, subnet, ports)


def _kept_apart(node: Node, port: RdmaPort) -> bool:
    return (
        ipv4_setting(node, port.netdev, "arp_ignore") >= 1
        and ipv4_setting(node, port.netdev, "arp_announce") >= 2
        and ipv4_setting(node, port.netdev, "rp_filter") != 1
    )


def _finding(node: Node, subnet: str, ports: Sequence[RdmaPort]) -> Finding:
    names = ("arp_ignore", "arp_announce", "rp_filter")
    return Finding(
        id=RULE.id,
        severity=Severity.NOTE,
        node=node.name,
        devices=tuple(word for port in ports for word in (port.device, port.netdev)),
        title=f"{', '.join(port.device for port in ports)} share the subnet {subnet}",
        evidence=tuple(
            f"{port.netdev}: " + ", ".join(f"{name} = {ipv4_setting(node, port.netdev, name)}" for name in names)
            for port in ports
        ),
        effect="traffic for several ports can arrive on one of them (not measured)",
        fix="use one subnet per rail, with routes between them; or set arp_ignore=1, arp_announce=2 and rp_filter=2:"
        " `sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2"
        " net.ipv4.conf.all.rp_filter=2`",
    )
