"""RDMA ports without a link."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RdmaPort
from orchestrator.rules.cluster import Cluster, gpu_port
from orchestrator.rules.registry import Rule
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="RDMA-PORT-DOWN",
    title="an RDMA port has no link",
    explain="NCCL drops ports that are not ACTIVE without a word; with none left it falls back to TCP sockets.",
    reads=("/sys/class/infiniband/*/ports/*/state", "/sys/class/infiniband/*/ports/*/phys_state"),
    source="NCCL src/transport/net_ib (ncclIbInit skips what is not IBV_PORT_ACTIVE); the articles' second fault",
    weight=20,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding a node, with all its dead ports."""
    for name, topology, _ in cluster.nodes:
        meant = [port for port in topology.rdma if gpu_port(port, topology)]
        down = [port for port in meant if not port.active]
        if down:
            yield _finding(name, down, alive=len(meant) - len(down))


def _finding(name: str, down: list[RdmaPort], alive: int) -> Finding:
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW,
        node=name,
        devices=tuple(port.device for port in down),
        title=f"{len(down)} of {len(down) + alive} RDMA ports have no link: {', '.join(p.device for p in down)}",
        evidence=tuple(
            f"/sys/class/infiniband/{port.device}/ports/{port.port}: state = {port.state or 'unreadable'}, "
            f"phys_state = {port.phys_state or 'unreadable'}, netdev = {port.netdev or 'none'}"
            for port in down
        ),
        effect=price(Traffic.HALF_THE_PORTS)
        if alive
        else "no RDMA from this node: the whole gang falls back to TCP; " + price(Traffic.TCP),
        fix="plug the cable, enable the switch port, then "
        + "; ".join(f"ip link set {port.netdev} up" for port in down if port.netdev),
    )
