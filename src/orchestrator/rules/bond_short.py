"""A bond that runs on fewer ports than it has."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.rules.cluster import Cluster
from orchestrator.rules.registry import Rule

RULE = Rule(
    id="BOND-SHORT",
    title="a bond has a dead slave",
    explain="Rendezvous, HTTP and, where RDMA is missing, all traffic cross the bond.",
    reads=("/proc/net/bonding/*", "/sys/class/net/*/bonding_slave/mii_status"),
    source="Linux Documentation/networking/bonding.rst",
    weight=30,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding a bond."""
    for name, topology, snapshot in cluster.nodes:
        for bond in topology.interfaces:
            status = {slave: snapshot.text(f"/sys/class/net/{slave}/bonding_slave/mii_status") for slave in bond.slaves}
            dead = [slave for slave, mii in status.items() if mii and mii != "up"]
            if dead:
                yield Finding(
                    id=RULE.id,
                    severity=Severity.SLOW,
                    node=name,
                    devices=(bond.name, *dead),
                    title=f"{bond.name} runs on {len(bond.slaves) - len(dead)} of {len(bond.slaves)} ports: "
                    f"{', '.join(dead)} is down",
                    evidence=tuple(
                        f"/sys/class/net/{slave}/bonding_slave/mii_status = {mii}" for slave, mii in status.items()
                    ),
                    effect=f"{bond.name} has no spare, and half its bandwidth"
                    if len(bond.slaves) == 2
                    else f"{bond.name} has {len(dead)} of {len(bond.slaves)} ports less",
                    fix=f"cable and switch LACP of {', '.join(dead)}; cat /proc/net/bonding/{bond.name}",
                )
