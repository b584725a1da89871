"""Fewer GPUs than the inventory says, or GPUs that the bus shows and NVML does not."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import Gpu, Topology
from orchestrator.rules.cluster import Cluster
from orchestrator.rules.registry import Rule

RULE = Rule(
    id="GPU-MISSING",
    title="a GPU is missing or lost",
    explain="Tensor parallelism needs every GPU: one that is off the bus stops the gang.",
    reads=("NVML device list", "/sys/bus/pci/devices/*/class", "`l40s_gpus` of the inventory"),
    source="NVML nvmlDeviceGetCount_v2, NVML_ERROR_GPU_IS_LOST",
    weight=5,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """Stop, once a node: which GPUs are lost, and how many are short."""
    for name, topology, _ in cluster.nodes:
        wanted = cluster.specs[name].gpus
        answering = [gpu for gpu in topology.gpus if gpu.index >= 0 and not gpu.lost]
        if topology.nvml_error or len(answering) >= wanted:
            continue
        yield _finding(name, topology, wanted, len(answering))


def _finding(name: str, topology: Topology, wanted: int, answering: int) -> Finding:
    lost = [gpu for gpu in topology.gpus if gpu.lost or gpu.index < 0]
    return Finding(
        id=RULE.id,
        severity=Severity.STOP,
        node=name,
        devices=tuple(gpu.address for gpu in lost),
        title=f"{answering} GPUs answer, {wanted} are wanted"
        + (f": {', '.join(_words(gpu) for gpu in lost)}" if lost else ""),
        evidence=(
            f"NVML: {answering} devices answer",
            f"PCI: {len(topology.gpus)} GPUs on the bus",
            f"inventory: l40s_gpus = {wanted}",
        ),
        effect="the gang can't start: every TP rank needs its GPU",
        fix="look for Xid 79 in `dmesg`; reset or power-cycle the node; reseat the card if it stays away"
        if lost or wanted > len(topology.gpus)
        else "check `nvidia-smi -L`",
    )


def _words(gpu: Gpu) -> str:
    which = f"GPU {gpu.index}" if gpu.index >= 0 else "a GPU"
    return f"{which} at {gpu.address} ({gpu.lost or 'on the bus, unknown to NVML'})"
