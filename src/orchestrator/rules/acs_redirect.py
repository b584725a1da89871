"""ACS sends traffic between two devices of one switch up through the root port."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RAILS
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.input import Input, as_root, input_of
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.config_space import config_space, unread
from orchestrator.topology.pci import bridges_above, card
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="ACS-REDIRECT",
    title="ACS redirects peer-to-peer traffic",
    explain=(
        "With P2P request redirect on, a switch sends every GPU-to-GPU and GPU-to-NIC packet to the CPU and back. The"
        " rule checks every downstream port on the path between GPUs and RDMA cards that share a switch, nested"
        " switches included. Elsewhere it costs nothing."
    ),
    reads=("/sys/bus/pci/devices/*/config (beyond 64 bytes: root only)",),
    source="PCI Express Base Specification, ACS Extended Capability (id 0x000D); NCCL troubleshooting guide, nccl#2079",
    weight=24,
    needs=RAILS,
)
_REQUEST_REDIRECT, _COMPLETION_REDIRECT, _EGRESS_CONTROL = 0x04, 0x08, 0x20
_REDIRECTS = _REQUEST_REDIRECT | _COMPLETION_REDIRECT | _EGRESS_CONTROL


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding per node, with all ports on the path; unknown where the configuration space was cut off."""
    for node in cluster.nodes:
        redirecting, cut_off = [], []
        for address, key in _ports_on_the_way(node):
            control = config_space(node.snapshot, key).acs_control
            if control is None:
                cut_off.append((address, unread(node.snapshot, key)))
            elif control & _REDIRECTS:
                redirecting.append((address, control))
        if input_of(node) is Input.XML:
            cut_off = [(switch.address, "NCCL's file has no configuration space") for switch in node.gpu_switches]
        if redirecting:
            yield _finding(node.name, redirecting)
        elif cut_off:
            yield _unknown(node, cut_off)


def _ports_on_the_way(node: Node) -> list[tuple[str, str]]:
    """Downstream ports above a GPU or rail port while another card is behind the same switch or behind one above it:
    (address, key), in order of address."""
    keys = [gpu.key for gpu in node.topology.gpus] + [port.key for port in node.rail_ports]
    talkers = {card(key) for key in keys if key in node.devices}
    behind = Counter(bridge for talker in talkers for bridge in bridges_above(talker))
    switches = {switch.key for switch in node.topology.switches}
    found = {port for talker in talkers for port in _ports_to_others(bridges_above(talker), switches, behind)}
    return sorted((node.devices[port].address, port) for port in found if port in node.devices)


def _ports_to_others(way: Sequence[str], switches: Collection[str], behind: Mapping[str, int]) -> Iterator[str]:
    """The downstream ports between a card and others. way: the bridges above it, nearest first; behind: number of cards
    below each bridge"""
    most = max((behind[bridge] for bridge in way if bridge in switches), default=0)
    return (port for port, above in pairwise(way) if above in switches and behind[port] < most)


def _finding(name: str, redirecting: Sequence[tuple[str, int]]) -> Finding:
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW,
        node=name,
        devices=tuple(address for address, _ in redirecting),
        title=f"ACS redirects peer-to-peer traffic on {len(redirecting)} switch port{'s'[: len(redirecting) > 1]}",
        evidence=tuple(
            f"/sys/bus/pci/devices/{address}/config: ACSCtl = {control:#06x}" for address, control in redirecting
        ),
        effect=price(Traffic.THROUGH_ROOT) + "; on some platforms it hangs",
        fix="; ".join(f"sudo setpci -s {address} ECAP_ACS+6.w=0000" for address, _ in redirecting)
        + " (until the next boot; to make it permanent, disable ACS or VT-d/AMD-Vi in the BIOS)",
    )


def _unknown(node: Node, cut_off: Sequence[tuple[str, str]]) -> Finding:
    return Finding(
        id=RULE.id,
        severity=Severity.UNKNOWN,
        node=node.name,
        devices=tuple(address for address, _ in cut_off),
        title="whether ACS redirects peer-to-peer traffic could not be read",
        evidence=tuple(f"/sys/bus/pci/devices/{address}/config: {why}" for address, why in cut_off[:4]),
        effect="if it does: " + price(Traffic.THROUGH_ROOT),
        fix=as_root(node),
    )
