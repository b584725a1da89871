"""RDMA ports that lost packets since their driver was loaded."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RAILS, RdmaPort
from orchestrator.rules.support.cluster import Cluster, Node, port_devices, port_folder
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.pci import number

RULE = Rule(
    id="RDMA-LOSSES",
    title="an RDMA port lost packets",
    explain=(
        "When a packet is lost, RoCE sends the entire window again; a lossless network loses none. The counters start"
        " when the driver is loaded, and are compared with the packets since then."
    ),
    reads=("/sys/class/infiniband/*/ports/*/hw_counters/*", "/sys/class/infiniband/*/ports/*/counters/*"),
    source="NVIDIA, Understanding mlx5 Linux Counters; Linux Documentation/ABI/stable/sysfs-class-infiniband",
    weight=38,
    needs=RAILS,
)
_LOST = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "rx_icrc_encapsulated")
_LINK = ("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "local_link_integrity_errors")
_PACKETS = ("port_rcv_packets", "port_xmit_packets")
SOME = 100
"""Losses below this are noise: links come up, cables are touched."""
PER_PACKETS = 100_000
"""One loss in so many packets costs about 1 % of the bandwidth of go-back-N at 100 Gb/s (not measured on L40S)."""


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding a port: slow where one in 100,000 packets is lost, else a note."""
    for node in cluster.nodes:
        for port in node.rail_ports:
            finding = _judged(node, port)
            if finding:
                yield finding


def _judged(node: Node, port: RdmaPort) -> Finding | None:
    folder = port_folder(node, port)
    files = node.snapshot.files

    def counted(kind: str, names: tuple[str, ...]) -> dict[str, int]:
        values = {name: number(files.get(f"{folder}/{kind}/{name}", "").strip()) for name in names}
        return {f"{kind}/{name}": value for name, value in values.items() if value > 0}

    lost, link = counted("hw_counters", _LOST), counted("counters", _LINK)
    if sum(lost.values()) < SOME and sum(link.values()) < SOME:
        return None
    packets = sum(counted("counters", _PACKETS).values())
    often = sum(lost.values()) * PER_PACKETS >= packets > 0 and all(
        f"{folder}/counters/{name}" in files for name in _PACKETS
    )
    total = sum(lost.values()) or sum(link.values())
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW if often and lost else Severity.NOTE,
        node=node.name,
        devices=port_devices(port),
        title=f"{port.device} counted {total} {'lost or repeated packets' if lost else 'link errors'}"
        + (f" in {packets} packets" if packets else ""),
        evidence=tuple(f"{folder}/{name} = {value}" for name, value in {**lost, **link}.items()),
        effect="entire windows are sent again (not measured); a lossless network loses no packets",
        fix="check flow control on the switch and the card (PFC for one priority, ECN), and that NCCL_IB_TC matches"
        " that priority; symbol_error means a bad cable",
    )
