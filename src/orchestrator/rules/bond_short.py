"""A bond that runs on fewer ports than it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import Interface
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.network import carrier

RULE = Rule(
    id="BOND-SHORT",
    title="a bond runs without some of its ports",
    explain=(
        "Rendezvous, HTTP and, without RDMA, all traffic cross the TCP side's bond; the GPUs' traffic crosses one"
        " that is a rail. A port that is up but that the switch did"
        " not add to the LACP group is in another aggregator, and carries nothing."
    ),
    reads=("/sys/class/net/*/bonding_slave/{mii_status,ad_aggregator_id}", "/sys/class/net/*/bonding/ad_aggregator"),
    source="Linux Documentation/networking/bonding.rst",
    weight=30,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding a bond."""
    for node in cluster.nodes:
        for bond in node.topology.interfaces:
            idle = dict(_idle_slaves(node, bond))
            if idle:
                yield _finding(node, bond, idle)


def _idle_slaves(node: Node, bond: Interface) -> Iterator[tuple[str, str]]:
    """Slaves that carry nothing, each with the value that shows it."""
    active = node.snapshot.text(f"/sys/class/net/{bond.name}/bonding/ad_aggregator")
    for slave in bond.slaves:
        folder = f"/sys/class/net/{slave}/bonding_slave"
        status = node.snapshot.text(f"{folder}/mii_status")
        aggregator = node.snapshot.text(f"{folder}/ad_aggregator_id")
        if status and status != "up":
            yield slave, f"{folder}/mii_status = {status}"
        elif active and aggregator and aggregator != active:
            yield slave, f"{folder}/ad_aggregator_id = {aggregator}, the bond's active one is {active}"


def _spare(alive: int) -> str:
    return " and no spare port" if alive < 2 else ""


def _carries(node: Node, bond: Interface) -> str:
    if any(carrier(port, node.topology) == bond.name for port in node.rail_ports):
        return "it is a rail: the gang's RDMA traffic waits for the slowest (not measured)"
    return "requests arrive over it, and weights where they are on the network"


def _finding(node: Node, bond: Interface, idle: Mapping[str, str]) -> Finding:
    alive = len(bond.slaves) - len(idle)
    names = ", ".join(idle)
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW,
        node=node.name,
        devices=(bond.name, *idle),
        title=f"{bond.name} runs on {alive} of {len(bond.slaves)} ports: {names} carries nothing",
        evidence=tuple(idle.values()),
        effect=f"{bond.name} has {alive} of {len(bond.slaves)} of its bandwidth{_spare(alive)}; {_carries(node, bond)}",
        fix=f"check the cable of {names} and LACP on the switch ports; `cat /proc/net/bonding/{bond.name}` shows the"
        " state",
    )
