"""RDMA ports with a link and without an address that NCCL can use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RAILS, RdmaPort
from orchestrator.protocol.layout import Layout
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.input import record_again
from orchestrator.rules.support.ports import Trouble, trouble
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.speed import Traffic, price, tcp_severity

RULE = Rule(
    id="RDMA-PORT-UNCONFIGURED",
    title="an RDMA port is up but has no RoCE v2 address",
    explain=(
        "RoCE v2 between nodes needs an IPv4 GID; the kernel makes one per address. On a node that also has ports"
        " without a link, RDMA-PORT-DOWN reports both."
    ),
    reads=("/sys/class/infiniband/*/ports/*/gids/*", ".../gid_attrs/types/*", ".../gid_attrs/ndevs/*"),
    source="NCCL src/transport/net_ib ncclIbGetGidIndex",
    weight=21,
    needs=RAILS,
)
_WORDS = {
    "no address": "{ports} up without an IPv4 address",
    "RoCE v1": "{ports} offering RoCE v1 only",
    "no GID": "{ports} with an address but no RoCE v2 GID for it",
}


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding per node; RoCE v1 only, a missing GID and a missing address are distinguished."""
    for node in cluster.nodes:
        others = [other for other in cluster.nodes if other is not node]
        troubles = [found for port in node.rail_ports if (found := trouble(port, node, others))]
        if troubles and not any(one.kind == "down" for one in troubles):
            yield _finding(node, troubles, cluster.layouts.get(node.spec.gang))
        unread = [port for port in node.rail_ports if not port.gids_recorded and port.link_layer != "InfiniBand"]
        if unread:
            yield _unknown(node, unread)


def _unknown(node: Node, ports: Sequence[RdmaPort]) -> Finding:
    return Finding(
        id=RULE.id,
        severity=Severity.UNKNOWN,
        node=node.name,
        devices=tuple(port.device for port in ports),
        title=f"whether {len(ports)} RDMA port{'s have' if len(ports) > 1 else ' has'} a RoCE v2 address "
        "was not recorded",
        evidence=tuple(f"{port.device}: no GID table in this input" for port in ports[:4]),
        effect="a port without such an address carries nothing: if so, " + price(Traffic.HALF_THE_PORTS),
        fix=record_again(node),
    )


def _finding(node: Node, troubles: Sequence[Trouble], layout: Layout | None) -> Finding:
    devices = [one.port.device for one in troubles]
    netdevs = [one.port.netdev for one in troubles if one.port.netdev]
    parts = [
        words.format(ports=", ".join(_name(one) for one in troubles if one.kind == kind))
        for kind, words in _WORDS.items()
        if any(one.kind == kind for one in troubles)
    ]
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW if node.usable else tcp_severity(layout),
        node=node.name,
        devices=(*devices, *netdevs),
        title=f"{len(troubles)} of {len(node.rail_ports)} RDMA ports can't be used: " + "; ".join(parts),
        evidence=tuple(one.evidence for one in troubles),
        effect=price(Traffic.HALF_THE_PORTS)
        if node.usable
        else "no RDMA from this node: the whole gang falls back to TCP; " + price(Traffic.TCP, layout),
        fix="; ".join(one.fix for one in troubles),
    )


def _name(one: Trouble) -> str:
    return f"{one.port.device} ({one.port.netdev})" if one.port.netdev else one.port.device
