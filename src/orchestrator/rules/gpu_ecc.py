"""GPUs whose memory is not checked by ECC, or some of one node's checked and others not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from orchestrator.model.finding import Finding, Severity
from orchestrator.rules.support.cluster import Cluster, Node, gpu_address
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


_GDDR = (75, 86, 89)
"""Compute capabilities whose GPUs have GDDR; those with HBM keep their check bits beside the memory."""
_SHARE = 16
_MIB = 1 << 20


def check(cluster: Cluster) -> Iterator[Finding]:
    """One note per node; GPUs that know no ECC are left out."""
    for node in cluster.nodes:
        modes = {
            gpu_address(device): ecc["enabled"]
            for device in node.nvml_devices
            if isinstance(ecc := device.get("ecc"), Mapping) and ecc.get("enabled") in (0, 1)
        }
        off = [address for address, enabled in modes.items() if not enabled]
        if off:
            yield Finding(
                id=RULE.id,
                severity=Severity.NOTE,
                node=node.name,
                devices=tuple(off),
                title=f"ECC is off on {len(off)} of {len(modes)} GPUs",
                evidence=tuple(f"NVML of {address}: nvmlDeviceGetEccMode = 0" for address in off[:4]),
                effect=f"memory errors are not detected and give wrong text; {_memory(node, off, len(modes))}",
                fix="run `sudo nvidia-smi -e 1`, then reset the GPUs or reboot",
            )


def _memory(node: Node, off: Sequence[str], known: int) -> str:
    """What ECC takes of the memory, or has taken of the others'."""
    sizes = {gpu.address: gpu.memory_total for gpu in node.topology.gpus if gpu.memory_total}
    without = [sizes[address] for address in off if address in sizes]
    within = [size for address, size in sizes.items() if address not in off]
    if len(off) < known and without and within and min(without) > min(within):
        less = (min(without) - min(within)) // _MIB
        return (
            f"the GPUs with ECC have {min(within) // _MIB} MiB, {less} MiB less than those without, which "
            "limits the KV cache of all"
        )
    if len(off) < known:
        return "where GPUs differ in memory, the smallest limits the KV cache of all"
    gddr = any(gpu.sm in _GDDR for gpu in node.topology.gpus)
    if gddr and without:
        return f"ECC would take about {min(without) // _SHARE // _MIB} of {min(without) // _MIB} MiB of each GPU"
    return "ECC takes a sixteenth of the memory of GPUs with GDDR, and none of those with HBM"
