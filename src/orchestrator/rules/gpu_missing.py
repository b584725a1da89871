"""Fewer GPUs than the inventory states, or GPUs that the bus shows but NVML does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import Area, Gpu
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.registry import Rule

RULE = Rule(
    id="GPU-MISSING",
    title="a GPU is missing or lost",
    explain="Tensor parallelism needs every GPU: one that fell off the bus stops the gang.",
    reads=("NVML device list", "/sys/bus/pci/devices/*/class", "`l40s_gpus` of the inventory"),
    source="NVML nvmlDeviceGetCount_v2, NVML_ERROR_GPU_IS_LOST",
    weight=5,
    needs=(Area.GPUS,),
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """Stop, once a node: which GPUs are lost, and how many are short. Unknown where a recording of NVML shows fewer
    than its bus: whoever made it may have seen only a container's."""
    for node in cluster.nodes:
        answering = sum(gpu.index >= 0 and not gpu.lost for gpu in node.topology.gpus)
        if not node.topology.nvml_error and answering < node.spec.gpus:
            found = _finding(node, answering)
            known = not node.saved or len(node.topology.gpus) < node.spec.gpus
            yield found if known or any(gpu.lost for gpu in node.topology.gpus) else _as_unknown(found)


def _finding(node: Node, answering: int) -> Finding:
    wanted, gpus = node.spec.gpus, node.topology.gpus
    lost = [gpu for gpu in gpus if gpu.lost or gpu.index < 0]
    return Finding(
        id=RULE.id,
        severity=Severity.STOP,
        node=node.name,
        devices=tuple(gpu.address for gpu in lost),
        title=f"{answering} GPUs respond, {wanted} are needed"
        + (f": {', '.join(_words(gpu) for gpu in lost)}" if lost else ""),
        evidence=(
            f"NVML: {answering} devices respond",
            f"PCI: {len(gpus)} GPUs on the bus",
            f"inventory: l40s_gpus = {wanted}",
        ),
        effect="the gang can't start: every TP rank needs its GPU",
        fix="check for Xid 79 with `dmesg -T | grep Xid`; reboot or power-cycle the node; if the GPU stays missing,"
        " reseat the card",
    )


def _as_unknown(finding: Finding) -> Finding:
    return replace(
        finding,
        severity=Severity.UNKNOWN,
        effect="either GPUs are lost, or NVML was asked where only some are visible (a container, a cgroup)",
        fix="compare with `nvidia-smi -L` on the node itself",
    )


def _words(gpu: Gpu) -> str:
    which = f"GPU {gpu.index}" if gpu.index >= 0 else "a GPU"
    return f"{which} at {gpu.address} ({gpu.lost or 'on the bus, not shown by NVML'})"
