"""Accelerators of another vendor that are not configured to count as GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import Area, PciDevice
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.names import part_name

RULE = Rule(
    id="GPU-OTHER-MAKER",
    title="accelerators of another vendor are not counted as GPUs",
    explain=(
        "Only NVIDIA's display controllers count as GPUs. A recorded machine may have another vendor's:"
        " `--accelerator VENDOR:CLASS` counts those. Reported where a node has no NVIDIA GPU and at least two such"
        " cards."
    ),
    reads=("/sys/bus/pci/devices/*/{class,vendor}",),
    source="PCI Code and ID Assignment Specification: 03 display, 0b40 co-processor, 12 processing accelerator",
    weight=80,
    needs=(Area.PCI,),
)
_ACCELERATORS = (0x0300, 0x0302, 0x0380, 0x0B40, 0x1200)
_DISPLAY, _ON_BOARDS = 0x0300, (0x1A03, 0x102B, 0x8086)
"""VGA controllers of ASPEED, Matrox and Intel are on boards and in CPUs."""
_FEWEST = 2


def check(cluster: Cluster) -> Iterator[Finding]:
    """One note per node without any GPU, for the maker with most accelerators."""
    for node in cluster.nodes:
        if not node.topology.gpus:
            counts = Counter((one.vendor, one.class_code >> 8) for one in node.topology.pci if _is_accelerator(one))
            if counts and counts.most_common(1)[0][1] >= _FEWEST:
                (vendor, kind), _ = counts.most_common(1)[0]
                yield _finding(node, vendor, kind)


def _is_accelerator(device: PciDevice) -> bool:
    kind = device.class_code >> 8
    return bool(device.vendor) and kind in _ACCELERATORS and not (kind == _DISPLAY and device.vendor in _ON_BOARDS)


def _finding(node: Node, vendor: int, kind: int) -> Finding:
    found = [one for one in node.topology.pci if one.vendor == vendor and one.class_code >> 8 == kind]
    return Finding(
        id=RULE.id,
        severity=Severity.NOTE,
        node=node.name,
        devices=tuple(one.address for one in found),
        title=f"{len(found)} accelerators ({part_name(vendor, found[0].device)}) are not counted as GPUs",
        evidence=tuple(f"/sys/bus/pci/devices/{one.address}/class = {one.class_code:#08x}" for one in found[:4]),
        effect="their place in the PCIe tree is not checked; the engine needs NVIDIA GPUs",
        fix=f"for a recorded machine, add `--accelerator {vendor:04x}:{kind:04x}`",
    )
