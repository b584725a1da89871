"""GPUs whose memory is not checked by ECC, or some of one node's checked and others not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.model.finding import Finding, Severity
from orchestrator.rules.support.cluster import Cluster, gpu_address
from orchestrator.rules.support.registry import Rule

RULE = Rule(
    id="GPU-ECC",
    title="ECC is off on some or all GPUs",
    explain=(
        "With ECC off, faulty memory gives wrong text instead of an error. On GDDR cards ECC takes a sixteenth of the"
        " memory (L40S: 46068 instead of 49140 MiB). Where GPUs differ, the smallest limits the KV cache of the gang."
    ),
    reads=("NVML nvmlDeviceGetEccMode",),
    source="NVIDIA Ada GPU memory error management; nvidia-smi -e",
    weight=61,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One note a node; GPUs that know no ECC are left out."""
    for node in cluster.nodes:
        modes = {
            gpu_address(device): ecc["enabled"]
            for device in node.nvml_devices
            if isinstance(ecc := device.get("ecc"), Mapping) and ecc.get("enabled") in (0, 1)
        }
        off = [address for address, enabled in modes.items() if not enabled]
        if off:
            mixed = len(off) < len(modes)
            yield Finding(
                id=RULE.id,
                severity=Severity.NOTE,
                node=node.name,
                devices=tuple(off),
                title=f"ECC is off on {len(off)} of {len(modes)} GPUs",
                evidence=tuple(f"NVML of {address}: nvmlDeviceGetEccMode = 0" for address in off[:4]),
                effect="memory errors are not detected and give wrong text; "
                + (
                    "the GPUs with ECC have about 6 % less memory, which limits the KV cache of all"
                    if mixed
                    else "ECC would take about 6 % of the memory of a GDDR card"
                ),
                fix="run `sudo nvidia-smi -e 1`, then reset the GPUs or reboot",
            )
