"""RDMA cards that may ask for little data at a time, and PCIe packets smaller than the path allows."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RAILS
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.input import as_root
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.config_space import config_space, unread
from orchestrator.topology.pci import card

RULE = Rule(
    id="PCIE-SETTINGS",
    title="an RDMA card's PCIe settings reduce its bandwidth",
    explain=(
        "A card that may read 512 bytes at a time sends eight requests instead of one for 4096 bytes. A packet size"
        " (MaxPayload) below that of the card's port wastes bandwidth on headers."
    ),
    reads=("/sys/bus/pci/devices/*/config (PCI Express capability; beyond 64 bytes: root only)",),
    source="NVIDIA ConnectX tuning guide (MaxReadReq 4096); PCI Express Base Specification, Device Control",
    weight=65,
    needs=RAILS,
)
_BEST_READ_REQUEST = 4096


def check(cluster: Cluster) -> Iterator[Finding]:
    """One note per node, or one unknown where nothing of it was readable."""
    for node in cluster.nodes:
        keys = {card(port.key): port.key for port in reversed(node.rail_ports) if port.key in node.devices}
        wrong = dict(found for key in keys.values() for found in _wrong(node, key))
        cut_off = [key for key in keys.values() if config_space(node.snapshot, key).max_read_request is None]
        if wrong:
            yield _note(node, wrong)
        elif cut_off:
            yield _unknown(node, cut_off)


def _wrong(node: Node, key: str) -> Iterator[tuple[str, str]]:
    space, address = config_space(node.snapshot, key), node.devices[key].address
    request, payload = space.max_read_request, space.max_payload
    bridge = node.above(key)
    above = config_space(node.snapshot, bridge.key).max_payload if bridge else None
    if request is not None and request < _BEST_READ_REQUEST:
        yield address, f"{address}: MaxReadReq = {request} bytes, {_BEST_READ_REQUEST} is best"
    elif payload is not None and above is not None and payload < above:
        yield address, f"{address}: MaxPayload = {payload} bytes, its port's is {above}"


def _note(node: Node, wrong: dict[str, str]) -> Finding:
    return Finding(
        id=RULE.id,
        severity=Severity.NOTE,
        node=node.name,
        devices=tuple(wrong),
        title="; ".join(wrong.values()),
        evidence=tuple(f"/sys/bus/pci/devices/{words}" for words in wrong.values()),
        effect="the card loses some bandwidth (not measured)",
        fix="change Maximum Read Request and Maximum Payload in the BIOS; until the next boot: "
        + "; ".join(f"sudo setpci -s {address} CAP_EXP+8.w=5000:7000" for address in wrong),
    )


def _unknown(node: Node, keys: list[str]) -> Finding:
    addresses = tuple(node.devices[key].address for key in keys)
    return Finding(
        id=RULE.id,
        severity=Severity.UNKNOWN,
        node=node.name,
        devices=addresses,
        title="the RDMA cards' read request and packet sizes could not be read",
        evidence=tuple(
            f"/sys/bus/pci/devices/{address}/config: {unread(node.snapshot, key)}"
            for address, key in zip(addresses, keys, strict=True)
        ),
        effect="if they are small, the card loses some bandwidth (not measured)",
        fix=as_root(node),
    )
