"""Rails with frames too small for full-size RoCE packets, or of different sizes."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import Interface
from orchestrator.rules.cluster import Cluster, gpu_port, majority
from orchestrator.rules.registry import Rule

RULE = Rule(
    id="RAIL-MTU",
    title="a rail's MTU is small or differs from its peers",
    explain="RoCE packets take the largest of 256..4096 bytes that fits: below 4200 bytes of MTU it is 2048 or less.",
    reads=("/sys/class/net/*/mtu of every RDMA port's net device",),
    source="Linux include/rdma/ib_addr.h iboe_get_mtu; NCCL takes the smaller of both ends",
    weight=35,
)
SMALLEST_FULL = 4200


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding a port: smaller than its peers on the other nodes, else too small everywhere."""
    mtus: dict[str, dict[str, Interface]] = {}
    for name, topology, _ in cluster.nodes:
        for port in topology.rdma:
            interface = topology.interface(port.netdev) if port.netdev else None
            if interface and port.active and port.link_layer == "Ethernet" and gpu_port(port, topology):
                mtus.setdefault(port.device, {})[name] = interface
    for device, by_node in mtus.items():
        most = majority({name: interface.mtu for name, interface in by_node.items()})
        for name, interface in by_node.items():
            if most and name in most[1]:
                yield _finding(name, device, interface, f"{interface.mtu}, on the other nodes {most[0]}", most[0])
            elif 0 < interface.mtu < SMALLEST_FULL:
                yield _finding(name, device, interface, str(interface.mtu), 9000)


def _finding(name: str, device: str, interface: Interface, found: str, wanted: int) -> Finding:
    packet = max((size for size in (256, 512, 1024, 2048, 4096) if size + 72 <= interface.mtu), default=256)
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW,
        node=name,
        devices=(device, interface.name),
        title=f"MTU of {interface.name} ({device}) is {found}",
        evidence=(f"/sys/class/net/{interface.name}/mtu = {interface.mtu}",),
        effect=f"RoCE packets of {packet} bytes instead of 4096 (loss not measured on L40S); "
        "where a switch or peer drops larger frames, a hang",
        fix=f"ip link set {interface.name} mtu {wanted}, the same on the switch and in netplan",
    )
