"""GPUs with uncorrectable memory errors, or slowed down by heat or power."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.model.finding import Finding, Severity
from orchestrator.rules.cluster import Cluster
from orchestrator.rules.registry import Rule

RULE = Rule(
    id="GPU-HEALTH",
    title="a GPU has memory errors or is throttled",
    explain="An uncorrectable ECC error ends the process that meets it. A throttled GPU slows all 32 ranks.",
    reads=("NVML nvmlDeviceGetTotalEccErrors", "NVML nvmlDeviceGetCurrentClocksEventReasons"),
    source="NVML API: nvmlClocksEventReasons (HW slowdown 0x8, SW thermal 0x20, HW thermal 0x40, brake 0x80)",
    weight=8,
)
_SLOWING = {0x08: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake"}


def check(cluster: Cluster) -> Iterator[Finding]:
    """Errors stop; throttling slows."""
    for name, _, snapshot in cluster.nodes:
        for device in snapshot.nvml.get("devices") or ():
            if isinstance(device, Mapping):
                yield from _errors(name, device)
                yield from _throttling(name, device)


def _errors(name: str, device: Mapping[str, Any]) -> Iterator[Finding]:
    ecc = device.get("ecc")
    count = ecc.get("uncorrected") if isinstance(ecc, Mapping) else None
    if isinstance(count, int) and count > 0:
        yield Finding(
            id=RULE.id,
            severity=Severity.STOP,
            node=name,
            devices=(str(device.get("pci_bus_id", "")),),
            title=f"GPU {device.get('index')} has {count} uncorrectable memory errors",
            evidence=(f"nvmlDeviceGetTotalEccErrors(uncorrected, volatile) = {count}",),
            effect="a process that meets such an error ends, and the gang with it",
            fix="reset the GPU (nvidia-smi --gpu-reset) or reboot; if it comes back, replace the card",
        )


def _throttling(name: str, device: Mapping[str, Any]) -> Iterator[Finding]:
    reasons = device.get("clocks_event_reasons")
    words = [word for bit, word in _SLOWING.items() if isinstance(reasons, int) and reasons & bit]
    if words:
        yield Finding(
            id=RULE.id,
            severity=Severity.SLOW,
            node=name,
            devices=(str(device.get("pci_bus_id", "")),),
            title=f"GPU {device.get('index')} is throttled: {', '.join(words)}",
            evidence=(f"nvmlDeviceGetCurrentClocksEventReasons = {reasons:#x}",),
            effect="every step of the gang waits for this GPU (how much depends on how far its clocks fell)",
            fix="fans, air flow and power supply of this node; nvidia-smi -q -d PERFORMANCE,TEMPERATURE",
        )
