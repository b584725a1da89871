"""Rail ports that speak InfiniBand where their peers speak Ethernet, or the other way round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.rules.support.cluster import Cluster
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="RAIL-LINK-LAYER",
    title="a rail port speaks another link layer than the others",
    explain="Cards with VPI ports can be set to InfiniBand or Ethernet; the two can't talk to each other.",
    reads=("/sys/class/infiniband/*/ports/*/link_layer",),
    source="NCCL src/transport/net_ib/connect.cc (link layers of both ends must match)",
    weight=14,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding for each node with ports of the rarer kind among its gang's."""
    for gang in cluster.gangs:
        kinds = Counter(port.link_layer for node in gang for port in node.rail_ports if port.link_layer)
        if len(kinds) < 2:
            continue
        common = kinds.most_common(1)[0][0]
        for node in gang:
            odd = [port for port in node.rail_ports if port.link_layer not in ("", common)]
            if odd:
                yield Finding(
                    id=RULE.id,
                    severity=Severity.SLOW,
                    node=node.name,
                    devices=tuple(port.device for port in odd),
                    title=f"{', '.join(port.device for port in odd)} speak{'s'[len(odd) > 1 :]} {odd[0].link_layer}, "
                    f"the other rail ports {common}",
                    evidence=tuple(
                        f"/sys/class/infiniband/{port.device}/ports/{port.port}/link_layer = {port.link_layer}"
                        for port in odd
                    ),
                    effect="these ports can't reach their peers: " + price(Traffic.HALF_THE_PORTS),
                    fix=f"mlxconfig -d DEVICE set LINK_TYPE_P1={'2' if common == 'Ethernet' else '1'} "
                    "(1 InfiniBand, 2 Ethernet), then reboot",
                )
