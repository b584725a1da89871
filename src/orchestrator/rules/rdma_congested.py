"""RDMA ports that were slowed down by congestion since their driver was loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RAILS, RdmaPort
from orchestrator.rules.support.cluster import Cluster, Node, port_devices, port_folder
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.pci import number

RULE = Rule(
    id="RDMA-CONGESTED",
    title="congestion slowed an RDMA port down",
    explain=(
        "A switch whose queue fills marks packets (ECN), the receiver sends CNPs, and the sender slows down; with PFC"
        " the switch sends pause frames. No packet is lost, as intended. A high count means that a rail is shared,"
        " oversubscribed or cabled through a narrow link. Pauses are reported where the driver shows them among its"
        " RDMA counters; mlx5 has them in `ethtool -S`, which is not read."
    ),
    reads=("/sys/class/infiniband/*/ports/*/hw_counters/*", "/sys/class/infiniband/*/ports/*/counters/*"),
    source="NVIDIA, Understanding mlx5 Linux Counters (np_cnp_sent, rp_cnp_handled, np_ecn_marked_roce_packets, "
    "rx_prioN_pause)",
    weight=37,
    needs=RAILS,
)
_MARKS = ("rp_cnp_handled", "np_cnp_sent", "np_ecn_marked_roce_packets")
_PAUSES = re.compile(r"[rt]x_prio[0-7]_pause")
SOME = 10_000
"""Fewer are noise: every start of a gang meets some."""
PER_PACKETS = 1_000
"""One in this many packets is reported; the cost was not measured on L40S."""


def check(cluster: Cluster) -> Iterator[Finding]:
    """One note a port."""
    for node in cluster.nodes:
        for port in node.rail_ports:
            finding = _judged(node, port)
            if finding:
                yield finding


def _judged(node: Node, port: RdmaPort) -> Finding | None:
    folder = port_folder(node, port)
    counters = {
        f"{kind}/{name}": number(node.snapshot.text(f"{folder}/{kind}/{name}"))
        for kind in ("hw_counters", "counters")
        for name in node.snapshot.names(f"{folder}/{kind}")
    }
    signs = {
        path: count
        for path, count in counters.items()
        if count >= SOME and (path.partition("/")[2] in _MARKS or _PAUSES.fullmatch(path.partition("/")[2]))
    }
    packets = sum(max(0, counters.get(f"counters/port_{way}_packets", 0)) for way in ("rcv", "xmit"))
    if not signs or max(signs.values()) * PER_PACKETS < packets:
        return None
    return Finding(
        id=RULE.id,
        severity=Severity.NOTE,
        node=node.name,
        devices=port_devices(port),
        title=f"{port.device} received {max(signs.values())} congestion notifications"
        + (f" in {packets} packets" if packets else ""),
        evidence=tuple(f"{folder}/{path} = {count}" for path, count in signs.items()),
        effect="collectives wait for the slowest rail (not measured)",
        fix="check on the switch which queues fill up: look for a slower link, two rails over one uplink, or other"
        " traffic in the same priority",
    )
