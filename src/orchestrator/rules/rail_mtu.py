"""Rails with frames too small for full-size RoCE packets, or of different sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.majority import majority
from orchestrator.model.topology import RAILS, Interface, RdmaPort
from orchestrator.rules.support.cluster import Cluster, Node, Slot
from orchestrator.rules.support.registry import Rule

RULE = Rule(
    id="RAIL-MTU",
    title="a rail's MTU is small, or differs between nodes",
    explain=(
        "RoCE uses the largest packet size of 256 to 4096 bytes that fits the MTU: below an MTU of 4200 it is 2048 or"
        " less. Checked on ports that can carry traffic; other rules report why the rest can't."
    ),
    reads=("/sys/class/net/*/mtu of every RDMA port's net device",),
    source="Linux include/rdma/ib_addr.h iboe_get_mtu; NCCL takes the smaller of both ends",
    weight=35,
    needs=RAILS,
)
SMALLEST_FULL = 4200
_USUAL = 9000


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding per node: ports that are smaller than most of their peers, else too small for full packets."""
    for group in cluster.peers:
        rails: dict[Slot, dict[str, int]] = {}
        for node in group:
            for place, _, interface in _judged(node):
                rails.setdefault(place, {})[node.name] = interface.mtu
        common = {place: most[0] for place, mtus in rails.items() if (most := majority(mtus))}
        for node in group:
            small = [(port, i, common.get(place, i.mtu)) for place, port, i in _judged(node)]
            small = [(port, i, peers) for port, i, peers in small if i.mtu != peers or i.mtu < SMALLEST_FULL]
            if small:
                yield _finding(node.name, {port: (interface, peers) for port, interface, peers in small})


def _judged(node: Node) -> Iterator[tuple[Slot, RdmaPort, Interface]]:
    usable = set(node.usable)
    for place, port in node.rail_places.items():
        interface = node.interfaces.get(port.netdev)
        if interface and interface.mtu and port in usable and port.link_layer == "Ethernet":
            yield place, port, interface


def _finding(name: str, ports: Mapping[RdmaPort, tuple[Interface, int]]) -> Finding:
    parts, fixes = [], []
    for port, (interface, peers) in ports.items():
        wanted = max(peers, interface.mtu) if max(peers, interface.mtu) >= SMALLEST_FULL else _USUAL
        differs = f", on the other nodes {peers}" if peers != interface.mtu else ""
        parts.append(f"{interface.name} ({port.device}) is {interface.mtu}{differs}")
        fixes.append(f"run `ip link set {interface.name} mtu {wanted}`")
    smallest = min(interface.mtu for interface, _ in ports.values())
    packet = max((size for size in (256, 512, 1024, 2048, 4096) if size + 72 <= smallest), default=256)
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW,
        node=name,
        devices=tuple(name for port, (interface, _) in ports.items() for name in (port.device, interface.name)),
        title="MTU of " + "; ".join(parts),
        evidence=tuple(f"/sys/class/net/{i.name}/mtu = {i.mtu}" for i, _ in ports.values()),
        effect=f"RoCE packets of {packet} bytes instead of 4096 (loss not measured)"
        if packet < 4096
        else "NCCL uses the smaller of both ends; it hangs if a switch or peer drops larger frames",
        fix="; ".join(fixes) + "; set the same on the switch and in netplan",
    )
