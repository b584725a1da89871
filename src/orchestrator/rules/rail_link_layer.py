"""Rail ports that use InfiniBand where their peers use Ethernet, or vice versa."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.majority import FEWEST_FOR_A_MAJORITY
from orchestrator.model.topology import RAILS, RdmaPort
from orchestrator.rules.support.cluster import Cluster, Node, odd_in_place
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="RAIL-LINK-LAYER",
    title="a rail port uses another link layer than its peers",
    explain="VPI ports can be set to InfiniBand or Ethernet; the two can't communicate.",
    reads=("/sys/class/infiniband/*/ports/*/link_layer",),
    source="NCCL src/transport/net_ib/connect.cc (link layers of both ends must match)",
    weight=14,
    needs=RAILS,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding for each node with ports of another kind than its peers' in the same place. A node is not judged
    against itself: InfiniBand rails beside an Ethernet card for storage are as they should be."""
    for gang in cluster.gangs:
        if len(gang) >= FEWEST_FOR_A_MAJORITY:
            for node, places in odd_in_place(gang, lambda _, port: port.link_layer or None):
                odd = [(port, own, common) for port, own, common in places.values()]
                yield _finding(node, odd)
        elif len(gang) > 1:
            yield from _of_two(gang)


def _of_two(gang: Sequence[Node]) -> Iterator[Finding]:
    """Where two nodes differ in a place, the kind that fewer of their ports speak is the odd one."""
    one, other = gang
    differing = [
        (port, other.rail_places[place])
        for place, port in one.rail_places.items()
        if place in other.rail_places and len({port.link_layer, other.rail_places[place].link_layer, ""}) > 2
    ]
    kinds = Counter(port.link_layer for node in gang for port in node.rail_ports if port.link_layer)
    for number, node in enumerate(gang):
        odd = [
            (pair[number], pair[number].link_layer, pair[1 - number].link_layer)
            for pair in differing
            if (kinds[pair[number].link_layer], -number) < (kinds[pair[1 - number].link_layer], number - 1)
        ]
        if odd:
            yield _finding(node, odd)


def _finding(node: Node, odd: Sequence[tuple[RdmaPort, str, str]]) -> Finding:
    ports, (_, own, common) = [port for port, *_ in odd], odd[0]
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW,
        node=node.name,
        devices=tuple(port.device for port in ports),
        title=f"{', '.join(port.device for port in ports)} speak{'s'[len(ports) > 1 :]} {own}, "
        f"the peers' ports in the same place {common}",
        evidence=tuple(
            f"/sys/class/infiniband/{port.device}/ports/{port.port}/link_layer = {port.link_layer}" for port in ports
        ),
        effect="these ports can't reach their peers: " + price(Traffic.HALF_THE_PORTS),
        fix=f"mlxconfig -d DEVICE set LINK_TYPE_P1={'2' if common == 'Ethernet' else '1'} "
        "(1 InfiniBand, 2 Ethernet), then reboot",
    )
