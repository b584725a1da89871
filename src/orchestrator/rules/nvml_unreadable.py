"""NVML does not answer at all."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.rules.cluster import Cluster
from orchestrator.rules.registry import Rule

RULE = Rule(
    id="NVML-UNREADABLE",
    title="the NVIDIA driver does not answer",
    explain="Without NVML there is no CUDA either; a call that does not come back is a wedged driver.",
    reads=("NVML nvmlInit, in a child process with a deadline",),
    source="NVML API reference, nvmlReturn_t",
    weight=4,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """Stop, once a node that has (or should have) GPUs."""
    for name, topology, _ in cluster.nodes:
        if topology.nvml_error and cluster.specs[name].gpus:
            yield Finding(
                id=RULE.id,
                severity=Severity.STOP,
                node=name,
                title=f"NVML does not answer: {topology.nvml_error}",
                evidence=(f"nvmlInit: {topology.nvml_error}", f"GPUs on the PCI bus: {len(topology.gpus)}"),
                effect="no engine can start on this node",
                fix="`nvidia-smi` on the node; reload the driver (modprobe nvidia) or reboot",
            )
