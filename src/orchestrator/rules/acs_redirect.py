"""ACS sends traffic between two devices of one switch up through the root port."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RAILS
from orchestrator.rules.support.acs import acs
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.input import Input, as_root, input_of
from orchestrator.rules.support.registry import Rule
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


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding per node, with all ports on the path; unknown where the configuration space was cut off."""
    for node in cluster.nodes:
        redirecting, cut_off = acs(node)
        if input_of(node) is Input.XML:
            cut_off = [(switch.address, "NCCL's file has no configuration space") for switch in node.gpu_switches]
        if redirecting:
            yield _finding(node.name, redirecting)
        elif cut_off:
            yield _unknown(node, cut_off)


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
