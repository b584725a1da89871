"""GPUs whose memory can't all be reached through the PCI bus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.model.finding import Finding, Severity
from orchestrator.rules.support.cluster import Cluster, Node, gpu_address, whole
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="GPU-BAR1-SMALL",
    title="a GPU's BAR 1 is smaller than its memory",
    explain=(
        "Cards and other GPUs access a GPU's memory through BAR 1. An L40S has a BAR 1 of 64 GiB for its 48 GB of"
        " memory; in display mode, or without 64-bit addresses above 4 GiB in the BIOS, it is 256 MiB."
    ),
    reads=("NVML nvmlDeviceGetBAR1MemoryInfo", "NVML nvmlDeviceGetMemoryInfo"),
    source="NVIDIA GPUDirect RDMA documentation, BAR sizes; nvidia-smi -q of an L40S (BAR1 65536 MiB)",
    weight=23,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding per node, with its small windows."""
    for node in cluster.nodes:
        small = list(_small(node))
        if small:
            yield Finding(
                id=RULE.id,
                severity=Severity.SLOW,
                node=node.name,
                devices=tuple(address for address, _ in small),
                title=f"BAR 1 of {len(small)} GPU{'s is' if len(small) > 1 else ' is'} too small for the memory",
                evidence=tuple(evidence for _, evidence in small),
                effect="peer-to-peer and GPUDirect RDMA fail or fall back to host memory; "
                + price(Traffic.HOST_STAGED),
                fix="enable Above 4G Decoding and Resizable BAR in the BIOS; turn display mode off with NVIDIA's"
                " displaymodeselector",
            )


def _small(node: Node) -> Iterator[tuple[str, str]]:
    for device in node.nvml_devices:
        memory = device.get("memory")
        total = whole(memory.get("total")) if isinstance(memory, Mapping) else 0
        window = whole(device.get("bar1_total"))
        if 0 < window < total:
            yield (
                gpu_address(device),
                f"NVML of GPU {device.get('index')}: BAR1 {window >> 20} MiB, memory {total >> 20} MiB",
            )
