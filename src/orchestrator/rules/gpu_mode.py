"""GPUs that refuse CUDA processes, or are shut down between two processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.model.finding import Finding, Severity
from orchestrator.rules.support.cluster import Cluster, gpu_address
from orchestrator.rules.support.registry import Rule

RULE = Rule(
    id="GPU-MODE",
    title="a GPU's mode prevents or slows a start",
    explain=(
        "Compute mode 'prohibited' refuses every CUDA process. Without persistence mode, the driver shuts a GPU down"
        " when its last process ends, and the next start takes a few seconds longer."
    ),
    reads=("NVML nvmlDeviceGetComputeMode", "NVML nvmlDeviceGetPersistenceMode"),
    source="NVML API, nvmlComputeMode_t (2 is prohibited)",
    weight=11,
)
_PROHIBITED = 2


def check(cluster: Cluster) -> Iterator[Finding]:
    """A stop for prohibited GPUs and a note for missing persistence, each once a node."""
    for node in cluster.nodes:
        closed = [device for device in node.nvml_devices if device.get("compute_mode") == _PROHIBITED]
        asleep = [device for device in node.nvml_devices if device.get("persistence") == 0]
        if closed:
            yield Finding(
                id=RULE.id,
                severity=Severity.STOP,
                node=node.name,
                devices=_addresses(closed),
                title=f"compute mode of {_which(closed)} is prohibited",
                evidence=(f"NVML of {_which(closed)}: nvmlDeviceGetComputeMode = 2",),
                effect="no CUDA process can start there",
                fix="run `sudo nvidia-smi -c DEFAULT`",
            )
        if asleep:
            yield Finding(
                id=RULE.id,
                severity=Severity.NOTE,
                node=node.name,
                devices=_addresses(asleep),
                title=f"persistence mode of {_which(asleep)} is off",
                evidence=(f"NVML of {_which(asleep)}: nvmlDeviceGetPersistenceMode = 0",),
                effect="each start of an engine waits a few seconds for the driver; no cost while it runs",
                fix="run `sudo systemctl enable --now nvidia-persistenced`",
            )


def _addresses(devices: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(gpu_address(device) for device in devices)


def _which(devices: Sequence[Mapping[str, Any]]) -> str:
    indices = ", ".join(str(device.get("index")) for device in devices)
    return f"GPU{'s' if len(devices) > 1 else ''} {indices}"
