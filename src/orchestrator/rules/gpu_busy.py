"""GPUs that somebody uses now. Memory that only the driver keeps is no use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.model.finding import Finding, Severity
from orchestrator.rules.support.cluster import Cluster, gpu_address, whole
from orchestrator.rules.support.registry import Rule

RULE = Rule(
    id="GPU-BUSY",
    title="processes hold GPU memory",
    explain=(
        "An idle GPU shows some hundred MiB used by NVML's first form, which counts what the driver reserves: only "
        "processes and used memory beyond the reserve count here. `up` checks again on the node before it starts."
    ),
    reads=("NVML nvmlDeviceGetComputeRunningProcesses", "NVML nvmlDeviceGetMemoryInfo"),
    source="NVML API; four idle H200 that showed 615 MiB used by the first form",
    weight=60,
)
RESERVE = 1 << 30
"""Bytes used that nothing but the driver may explain, where NVML does not tell its reserve apart."""


def check(cluster: Cluster) -> Iterator[Finding]:
    """One note a node, with the GPUs and the processes."""
    for node in cluster.nodes:
        busy = [device for device in node.nvml_devices if _is_busy(device)]
        if busy:
            yield Finding(
                id=RULE.id,
                severity=Severity.NOTE,
                node=node.name,
                devices=tuple(gpu_address(device) for device in busy),
                title=f"{len(busy)} GPU{'s are' if len(busy) > 1 else ' is'} in use",
                evidence=tuple(_words(device) for device in busy),
                effect="a gang can't start on them unless these processes are its own",
                fix="`l40s-deploy status` shows whether they are ours; `nvidia-smi` names the processes",
            )


def _is_busy(device: Mapping[str, Any]) -> bool:
    memory = device.get("memory")
    if device.get("processes"):
        return True
    return isinstance(memory, Mapping) and whole(memory.get("used")) > RESERVE


def _words(device: Mapping[str, Any]) -> str:
    memory = device.get("memory")
    used = whole(memory.get("used")) if isinstance(memory, Mapping) else 0
    said = device.get("processes")
    pids = [str(one.get("pid")) for one in said if isinstance(one, Mapping)] if isinstance(said, (list, tuple)) else []
    return f"NVML of GPU {device.get('index')}: {used >> 20} MiB used, processes {', '.join(pids) or 'none shown'}"
