"""PCIe errors that the hardware counted on GPUs, cards and the ports above them."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RAILS
from orchestrator.rules.support.cluster import Cluster, Node, gpu_address, whole
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.pci import number

RULE = Rule(
    id="PCIE-ERRORS",
    title="a PCIe link has counted errors",
    explain=(
        "After a corrected error the packet is sent again, which costs time; many of them on one link mean a bad"
        " contact, riser or retimer. An uncorrected error fails the transfer."
    ),
    reads=("/sys/bus/pci/devices/*/aer_dev_{correctable,nonfatal,fatal}", "NVML nvmlDeviceGetPcieReplayCounter"),
    source="Linux Documentation/PCI/pcieaer-howto.rst, sysfs-bus-pci-devices-aer_stats",
    weight=58,
    needs=RAILS,
)
_SOME = 100
"""Corrected errors since boot below this are noise: links train, cables are touched."""


def check(cluster: Cluster) -> Iterator[Finding]:
    """One note per node over all its links; uncorrected errors make it slow."""
    for node in cluster.nodes:
        corrected, uncorrected = _counted(node)
        if corrected or uncorrected:
            yield Finding(
                id=RULE.id,
                severity=Severity.SLOW if uncorrected else Severity.NOTE,
                node=node.name,
                devices=tuple(dict.fromkeys((*uncorrected, *corrected))),
                title="; ".join(
                    f"PCIe errors {kind} on {', '.join(links)}"
                    for kind, links in (("not corrected", uncorrected), ("corrected", corrected))
                    if links
                ),
                evidence=(*uncorrected.values(), *corrected.values()),
                effect="packets are sent again (not measured); an uncorrected error stops the gang",
                fix="reseat the card and its riser; swap slots to see whether the errors follow the card",
            )


def _counted(node: Node) -> tuple[dict[str, str], dict[str, str]]:
    corrected: dict[str, str] = {}
    uncorrected: dict[str, str] = {}
    for key in _links(node):
        address = key.rpartition("/")[2]
        for kind in ("correctable", "nonfatal", "fatal"):
            path = f"{key}/aer_dev_{kind}"
            count = _total(node.snapshot.files.get(path, ""))
            if kind == "correctable" and count >= _SOME:
                corrected[address] = f"{path}: {count}"
            elif kind != "correctable" and count:
                uncorrected[address] = f"{path}: {count}"
    for device in node.nvml_devices:
        replays = whole(device.get("replays"))
        if replays >= _SOME:
            address = gpu_address(device)
            corrected.setdefault(address, f"NVML of GPU {device.get('index')}: PCIe replays = {replays}")
    return corrected, uncorrected


def _links(node: Node) -> list[str]:
    keys = [gpu.key for gpu in node.topology.gpus] + [port.key for port in node.rail_ports]
    bridges = [bridge.key for key in keys if (bridge := node.above(key))]
    return list(dict.fromkeys([*keys, *bridges]))


def _total(text: str) -> int:
    """The last line of such a file is the sum: 'TOTAL_ERR_COR 12'."""
    name, _, value = text.strip().rpartition("\n")[2].partition(" ")
    return max(0, number(value)) if name.startswith("TOTAL_ERR") else 0
