"""A virtual machine that shows no PCIe switches, or emulated ones: nobody inside can check the paths between GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import PLACES
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.input import is_guest
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.slotted_switches import emulated_switches

RULE = Rule(
    id="PCIE-TREE-HIDDEN",
    title="a virtual machine hides the PCIe switches",
    explain=(
        "A hypervisor usually puts every passed-through GPU and card on an emulated root port, or switch. Which of them"
        " share a switch, and what ACS does there, shows on the host only. NCCL sees no more than this either, unless"
        " the hypervisor provides virtualTopology.xml."
    ),
    reads=("/proc/cpuinfo (flag hypervisor)", "/sys/bus/pci/devices/* (real paths)"),
    source="Linux arch/x86/include/asm/cpufeatures.h X86_FEATURE_HYPERVISOR; NCCL src/graph/xml.cc",
    weight=88,
    needs=PLACES,
)
_BLIND = (
    "ACS-REDIRECT", "GPU-GROUPS-UNEVEN", "GPU-P2P-OFF", "NIC-MISSING", "NIC-NOT-UNDER-SWITCH", "NUMA-UNKNOWN",
    "PCIE-LINK-REDUCED",
)  # fmt: skip
"""Rules that look at switches, wholly or in part."""


def check(cluster: Cluster) -> Iterator[Finding]:
    """One unknown a virtual machine with several GPUs and cards for them."""
    for node in cluster.nodes:
        if is_guest(node) and node.rail_ports and _hidden(node):
            count = sum(gpu.key in node.devices for gpu in node.topology.gpus)
            yield Finding(
                id=RULE.id,
                severity=Severity.UNKNOWN,
                node=node.name,
                devices=_BLIND,
                title="this virtual machine shows no real PCIe switch above its GPUs: rules of switches can't judge it",
                evidence=("/proc/cpuinfo: hypervisor", f"{count} GPUs, none behind a real switch"),
                effect="the faults that these rules find may exist on the host, and NCCL does not see it either",
                fix="run `l40s-deploy doctor` on the host, or ask the provider for NCCL's topology file of this"
                " machine type (NCCL_TOPO_FILE) and read it with `l40s-deploy doctor --from FILE`",
            )


def _hidden(node: Node) -> bool:
    keys = [gpu.key for gpu in node.topology.gpus if gpu.key in node.devices]
    emulated = emulated_switches(node.topology)
    return len(keys) > 1 and all(emulated.issuperset(node.places.above(key)) for key in keys)
