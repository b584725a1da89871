"""The gang's traffic has nothing but TCP to travel on, though cards for RDMA are there."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding
from orchestrator.model.topology import RAILS
from orchestrator.protocol.layout import Layout
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.speed import Traffic, price, tcp_severity

RULE = Rule(
    id="TRAFFIC-ON-TCP",
    title="all traffic between the nodes would use TCP",
    explain="If one node has no usable RDMA port, all nodes of the gang use TCP: NCCL needs one network on all ranks.",
    reads=("everything that decides whether an RDMA port is usable",),
    source="NCCL src/plugin/net.cc (one network for a communicator); the articles' third fault",
    weight=12,
    needs=RAILS,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding on each node that has cards and no usable port; quiet where TCP was asked for, or one node is all."""
    for gang in cluster.gangs:
        for node in () if cluster.is_alone(gang[0].spec.gang) else gang:
            physical = any(not port.virtual for port in node.topology.rdma)
            if physical and not node.usable and node.spec.transport != "tcp":
                yield _finding(node, cluster.layouts.get(node.spec.gang))


def _finding(node: Node, layout: Layout | None) -> Finding:
    choice = node.tcp
    interface = node.interfaces.get(choice.interface) if choice else None
    ports = len(interface.slaves) if interface and interface.slaves else 1
    port = (
        f"one TCP port, {choice.interface}"
        if choice and ports == 1
        else f"TCP on {choice.interface if choice else '?'}"
    )
    return Finding(
        id=RULE.id,
        severity=tcp_severity(layout),
        node=node.name,
        devices=(choice.interface,) if choice else (),
        title="no RDMA port of this node can carry the gang's traffic: all of it uses " + (port if choice else "TCP"),
        evidence=(
            *(
                f"{port.device}: {port.state or 'state unreadable'}, "
                f"{'behind a switch' if port.switch else 'on a root port'}, netdev {port.netdev or 'none'}"
                for port in node.topology.rdma
            ),
            *((f"TCP side = {choice.address}; {choice.reason}",) if choice else ()),
        ),
        effect=price(Traffic.TCP, layout),
        fix="correct the ports named in this node's other findings; `l40s-deploy discover` shows them in the tree",
    )
