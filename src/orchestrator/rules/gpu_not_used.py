"""GPUs on the bus that the gang may not use: beyond l40s_gpus, or hidden from NVML."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import Area, Gpu
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.registry import Rule

RULE = Rule(
    id="GPU-NOT-USED",
    title="some GPUs of this node are not used",
    explain=(
        "The PCI bus shows every GPU of the machine. A gang uses the first `l40s_gpus` that NVML shows; in a"
        " container or on a shared machine, NVML may show fewer than the bus has. The others are not part of any plan"
        " or prediction."
    ),
    reads=("NVML device list", "/sys/bus/pci/devices/*/class", "`l40s_gpus` of the inventory"),
    source="CUDA C++ Programming Guide, CUDA_VISIBLE_DEVICES; NVML nvmlDeviceGetCount_v2",
    weight=70,
    needs=(Area.PCI, Area.GPUS),
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One note per node that has the GPUs it is to have, and more; too few are GPU-MISSING's."""
    for node in cluster.nodes:
        used = {gpu.key for gpu in node.gpus}
        idle = [gpu for gpu in node.topology.gpus if gpu.key not in used]
        if idle and len(used) >= node.spec.gpus and not node.topology.nvml_error:
            yield _finding(node, idle)


def _finding(node: Node, idle: list[Gpu]) -> Finding:
    wanted, gpus = node.spec.gpus, node.topology.gpus
    shown = sum(gpu.index >= 0 for gpu in gpus)
    return Finding(
        id=RULE.id,
        severity=Severity.NOTE,
        node=node.name,
        devices=tuple(gpu.address for gpu in idle),
        title=f"{len(idle)} of {len(gpus)} GPUs are not used",
        evidence=(
            f"PCI: {len(gpus)} GPUs on the bus",
            f"NVML: {shown} devices",
            f"inventory: l40s_gpus = {wanted}",
            *(f"{gpu.address}: {_why(gpu)}" for gpu in idle[:4]),
        ),
        effect="the plan, memory and NCCL groups count only the other GPUs",
        fix=f"to use them, set `l40s_gpus: {len(gpus)}`; a container also needs all /dev/nvidia* files",
    )


def _why(gpu: Gpu) -> str:
    if gpu.index < 0:
        return "NVML does not show it"
    return gpu.lost or f"GPU {gpu.index}, beyond l40s_gpus"
