"""GPUs that are in use. Memory that only the driver reserves does not count."""

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
        "Only processes, and memory used beyond the driver's reserve, count here: an idle GPU shows a few hundred MiB"
        " in the first version of NVML's call, which includes that reserve. `up` checks again on the node before it"
        " starts."
    ),
    reads=("NVML nvmlDeviceGetComputeRunningProcesses", "NVML nvmlDeviceGetMemoryInfo"),
    source="NVML API; four idle H200s that showed 615 MiB used in the first version of the call",
    weight=60,
)
RESERVE = 1 << 30
"""Bytes used that nothing but the driver may explain, where NVML does not tell its reserve apart."""


def check(cluster: Cluster) -> Iterator[Finding]:
    """One note per node, with the GPUs and the processes."""
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
                effect="a gang can't start on them, unless these processes are its own",
                fix="check with `l40s-deploy status` whether a gang uses them; otherwise find the processes with"
                " `nvidia-smi` and stop them",
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
