"""RDMA ports without a link."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RAILS, RdmaPort
from orchestrator.protocol.layout import Layout
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.ports import Trouble, trouble
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.network import carrier, is_bonded
from orchestrator.topology.rdma import card_of
from orchestrator.topology.speed import Traffic, price, tcp_severity

RULE = Rule(
    id="RDMA-PORT-DOWN",
    title="RDMA ports have no link",
    explain=(
        "NCCL silently skips ports that are not ACTIVE; with none left it falls back to TCP sockets. If some ports of"
        " a node have no link, its unconfigured ports are reported in the same finding."
    ),
    reads=("/sys/class/infiniband/*/ports/*/state", "/sys/class/infiniband/*/ports/*/phys_state"),
    source="NCCL src/transport/net_ib (ncclIbInit skips what is not IBV_PORT_ACTIVE); the articles' second fault",
    weight=20,
    needs=RAILS,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding per node, with its unusable ports; a spare port of the main card is listed there, or noted."""
    for node in cluster.nodes:
        others = [other for other in cluster.nodes if other is not node]
        troubles = [found for port in node.rail_ports if (found := trouble(port, node, others))]
        spare = _spare_ports_down(node)
        if any(one.kind == "down" for one in troubles):
            yield _finding(node, [*troubles, *spare], cluster.layouts.get(node.spec.gang))
        elif spare:
            yield _note(node, spare)


def _spare_ports_down(node: Node) -> list[Trouble]:
    """Dead ports beside the one that carries TCP; those of a bond are the bond's."""
    meant, tcp = set(node.rail_ports), node.tcp.interface if node.tcp else ""
    main = {card_of(port) for port in node.topology.rdma if tcp and carrier(port, node.topology) == tcp}
    spare = [port for port in _own_ports(node) if port not in meant and card_of(port) in main]
    found = [trouble(port, node) for port in spare if not port.active]
    return [one for one in found if one]


def _own_ports(node: Node) -> list[RdmaPort]:
    rails = set(node.rail_ports)
    return [
        port
        for port in node.topology.rdma
        if not port.virtual and (port in rails or not is_bonded(port, node.topology))
    ]


def _finding(node: Node, troubles: Sequence[Trouble], layout: Layout | None) -> Finding:
    troubles = sorted(troubles, key=lambda one: node.topology.rdma.index(one.port))
    down = [one.port.device for one in troubles if one.kind == "down"]
    idle = [one.port.device for one in troubles if one.kind != "down"]
    words = f"{', '.join(down)} {'has' if len(down) == 1 else 'have'} no link"
    words += f", {', '.join(idle)} no usable address" if idle else ""
    up = "; ".join(one.fix for one in troubles if one.kind == "down")
    fixes = [f"{', '.join(down)}: plug the cable, enable the switch's port, then {up}"]
    fixes += [f"{one.port.device}: {one.fix}" for one in troubles if one.kind != "down"]
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW if node.usable else tcp_severity(layout),
        node=node.name,
        devices=(*down, *idle),
        title=f"{len(troubles)} of {len(_own_ports(node))} RDMA ports {'is' if len(troubles) == 1 else 'are'} "
        f"down or unconfigured: {words}",
        evidence=tuple(one.evidence for one in troubles),
        effect=price(Traffic.HALF_THE_PORTS)
        if node.usable
        else "no RDMA from this node: the whole gang falls back to TCP; " + price(Traffic.TCP, layout),
        fix="; ".join(fixes),
    )


def _note(node: Node, spare: Sequence[Trouble]) -> Finding:
    names = ", ".join(one.port.device for one in spare)
    return Finding(
        id=RULE.id,
        severity=Severity.NOTE,
        node=node.name,
        devices=tuple(one.port.device for one in spare),
        title=f"the TCP side has no spare port: {names} has no link",
        evidence=tuple(one.evidence for one in spare),
        effect="no cost while RDMA carries the traffic; rendezvous and HTTP have no spare port",
        fix="cable it, and bond both ports",
    )
