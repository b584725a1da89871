"""The gang's traffic has nothing but TCP to travel on, though cards for RDMA are there."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.rules.cluster import Cluster
from orchestrator.rules.registry import Rule
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="TRAFFIC-ON-TCP",
    title="all traffic between the nodes would cross TCP",
    explain="One node without a usable RDMA port takes RDMA from the whole gang: NCCL needs one network on all ranks.",
    reads=("everything that decides whether an RDMA port is usable",),
    source="NCCL src/plugin/net.cc (one network for a communicator); the articles' third fault",
    weight=12,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding on each node that has cards and no usable port; quiet where TCP was asked for."""
    if len(cluster.topologies) < 2:
        return
    for name, topology, _ in cluster.nodes:
        if cluster.specs[name].transport == "tcp" or cluster.usable[name] or not topology.rdma:
            continue
        choice = cluster.tcp.get(name)
        over = f"TCP on {choice.interface} ({choice.address})" if choice else "TCP"
        yield Finding(
            id=RULE.id,
            severity=Severity.SLOW,
            node=name,
            devices=(choice.interface,) if choice else (),
            title=f"no RDMA port of this node can carry the gang's traffic: everything crosses {over}",
            evidence=tuple(
                f"{port.device}: {port.state or 'state unreadable'}, "
                f"{'behind switch' if port.switch else 'on a root port'}, netdev {port.netdev or 'none'}"
                for port in topology.rdma
            ),
            effect=price(Traffic.TCP),
            fix="mend the ports named in this node's other findings; `l40s-deploy discover` shows them in the tree",
        )
