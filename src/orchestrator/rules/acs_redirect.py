"""ACS sends traffic between two devices of one switch up through the root port."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import Topology
from orchestrator.rules.cluster import Cluster, above
from orchestrator.rules.registry import Rule
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="ACS-REDIRECT",
    title="ACS redirects peer-to-peer traffic",
    explain="With P2P request redirect on, a switch sends every GPU-to-GPU and GPU-to-NIC packet to the CPU and back.",
    reads=("/sys/bus/pci/devices/*/config (beyond 64 bytes: root only)",),
    source="PCI Express Base Specification, ACS Extended Capability (id 0x000D); NCCL troubleshooting guide, nccl#2079",
    weight=24,
)
_ACS = 0x000D
_REQUEST_REDIRECT, _COMPLETION_REDIRECT, _EGRESS = 0x04, 0x08, 0x20


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding a node over all ports above a GPU or RDMA card; unknown where the config space was cut off."""
    for name, topology, snapshot in cluster.nodes:
        ports = _ports_above_gpus_and_cards(topology)
        redirecting, unread = [], []
        for address, key in ports:
            control = acs_control(_config(snapshot, key))
            if control is None:
                unread.append(address)
            elif control & (_REQUEST_REDIRECT | _COMPLETION_REDIRECT | _EGRESS):
                redirecting.append((address, control))
        if redirecting:
            yield _finding(name, redirecting)
        elif unread:
            yield _unknown(name, unread)


def acs_control(config: bytes) -> int | None:
    """The ACS control register of a function's config space; 0 without the capability, None where not readable."""
    if len(config) < 0x100 + 4:
        return None
    offset, seen = 0x100, set[int]()
    while 0x100 <= offset <= len(config) - 8 and offset not in seen:
        seen.add(offset)
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header & 0xFFFF == _ACS:
            return int.from_bytes(config[offset + 6 : offset + 8], "little")
        offset = header >> 20
    return 0


def _config(snapshot: Snapshot, key: str) -> bytes:
    text = snapshot.text(f"{key}/config")
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _ports_above_gpus_and_cards(topology: Topology) -> list[tuple[str, str]]:
    below = {device.key: device for device in topology.pci}
    ports: dict[str, str] = {}
    for key in (*(gpu.key for gpu in topology.gpus if gpu.switch), *(p.key for p in topology.rdma if p.switch)):
        device = below.get(key)
        bridge = above(device, topology) if device else None
        if bridge:
            ports[bridge.address] = bridge.key
    return sorted(ports.items())


def _finding(name: str, redirecting: list[tuple[str, int]]) -> Finding:
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW,
        node=name,
        devices=tuple(address for address, _ in redirecting),
        title=f"ACS redirects peer-to-peer traffic on {len(redirecting)} switch ports",
        evidence=tuple(f"{address}: ACSCtl = {control:#06x}" for address, control in redirecting),
        effect=price(Traffic.THROUGH_ROOT) + "; on some platforms a hang",
        fix="; ".join(f"sudo setpci -s {address} ECAP_ACS+6.w=0000" for address, _ in redirecting)
        + " (until the next boot; for good: disable ACS or VT-d/AMD-Vi in the BIOS)",
    )


def _unknown(name: str, unread: list[str]) -> Finding:
    return Finding(
        id=RULE.id,
        severity=Severity.UNKNOWN,
        node=name,
        devices=tuple(unread),
        title="whether ACS redirects peer-to-peer traffic could not be read",
        evidence=tuple(f"/sys/bus/pci/devices/{address}/config: cut off at 64 bytes" for address in unread[:4]),
        effect="if it does: " + price(Traffic.THROUGH_ROOT),
        fix="look as root: set ansible_become: true in the inventory",
    )
