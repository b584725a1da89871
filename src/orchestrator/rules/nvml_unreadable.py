"""NVML does not answer at all."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.snapshot import NOT_RECORDED
from orchestrator.model.topology import Area
from orchestrator.rules.support.cluster import Cluster
from orchestrator.rules.support.input import record_again
from orchestrator.rules.support.registry import Rule

RULE = Rule(
    id="NVML-UNREADABLE",
    title="the NVIDIA driver does not respond",
    explain="Without NVML, CUDA does not work either. A call that never returns means that the driver hangs.",
    reads=("NVML nvmlInit, in a child process with a deadline",),
    source="NVML API reference, nvmlReturn_t",
    weight=4,
    needs=(Area.GPUS,),
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """Stop, once a node that has (or should have) GPUs; unknown if NVML was not asked."""
    for node in cluster.nodes:
        error = node.topology.nvml_error
        if not error or not node.spec.gpus:
            continue
        asked = error != NOT_RECORDED
        yield Finding(
            id=RULE.id,
            severity=Severity.STOP if asked else Severity.UNKNOWN,
            node=node.name,
            title=f"NVML does not respond: {error}" if asked else "NVML's answers were not recorded",
            evidence=(f"nvmlInit: {error}", f"GPUs on the PCI bus: {len(node.topology.gpus)}"),
            effect="no engine can start on this node" if asked else "health, memory and P2P of the GPUs are not known",
            fix="run `nvidia-smi` on the node; reload the driver (`modprobe nvidia`) or reboot"
            if asked
            else record_again(node),
        )
