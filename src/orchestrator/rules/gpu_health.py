"""GPUs with memory errors that can't be corrected, or slowed down by heat or power."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.bench.machines import SLOWING
from orchestrator.model.finding import Finding, Severity
from orchestrator.rules.support.cluster import Cluster, gpu_address, whole
from orchestrator.rules.support.registry import Rule

RULE = Rule(
    id="GPU-HEALTH",
    title="a GPU has memory errors or is throttled",
    explain="An uncorrectable ECC error kills the process that hits it. A throttled GPU slows down all ranks of the"
            " gang.",
    reads=(
        "NVML nvmlDeviceGetTotalEccErrors", "NVML nvmlDeviceGetRemappedRows",
        "NVML nvmlDeviceGetCurrentClocksEventReasons",
    ),
    source="NVML API: nvmlClocksEventReasons (HW slowdown 0x8, SW thermal 0x20, HW thermal 0x40, brake 0x80)",
    weight=8,
)  # fmt: skip


def check(cluster: Cluster) -> Iterator[Finding]:
    """Errors stop; a pending repair and throttling slow."""
    for node in cluster.nodes:
        for device in node.nvml_devices:
            yield from _errors(node.name, device)
            yield from _repairs(node.name, device)
            yield from _throttling(node.name, device)


def _errors(name: str, device: Mapping[str, Any]) -> Iterator[Finding]:
    ecc = device.get("ecc")
    count = whole(ecc.get("uncorrected")) if isinstance(ecc, Mapping) else 0
    if count > 0:
        yield _finding(
            name,
            device,
            Severity.STOP,
            f"has {count} uncorrectable memory error{'s' if count > 1 else ''}",
            f"nvmlDeviceGetTotalEccErrors(uncorrected, volatile) = {count}",
            "a process that hits such an error dies, and the gang with it",
            "reset the GPU (`nvidia-smi --gpu-reset`) or reboot; if the errors return, replace the card",
        )


def _repairs(name: str, device: Mapping[str, Any]) -> Iterator[Finding]:
    """NVML gives (corrected, uncorrected, pending, failed)."""
    rows = device.get("remapped_rows")
    if not isinstance(rows, (list, tuple)) or len(rows) != 4:
        return
    evidence = f"nvmlDeviceGetRemappedRows = {list(rows)} (corrected, uncorrected, pending, failed)"
    if rows[3]:
        yield _finding(
            name,
            device,
            Severity.STOP,
            "could not repair a faulty memory row",
            evidence,
            "a process that hits it dies, and the gang with it",
            "replace the card; `nvidia-smi -q -d ROW_REMAPPER` shows the rows",
        )
    elif rows[2]:
        yield _finding(
            name,
            device,
            Severity.SLOW,
            "will repair a faulty memory row at its next reset",
            evidence,
            "until then a process may hit it and die, and the gang with it",
            "reset the GPU (`nvidia-smi --gpu-reset`) or reboot before the gang starts",
        )


def _throttling(name: str, device: Mapping[str, Any]) -> Iterator[Finding]:
    reasons = whole(device.get("clocks_event_reasons"))
    words = [word for bit, word in SLOWING.items() if reasons & bit]
    if words:
        yield _finding(
            name,
            device,
            Severity.SLOW,
            f"is throttled: {', '.join(words)}",
            f"nvmlDeviceGetCurrentClocksEventReasons = {reasons:#x}",
            "every step of the gang waits for this GPU (the cost depends on how far its clocks dropped)",
            "check the fans, air flow and power supply of this node; `nvidia-smi -q -d PERFORMANCE,TEMPERATURE` shows"
            " the reason",
        )


def _finding(
    name: str, device: Mapping[str, Any], severity: Severity, words: str, evidence: str, effect: str, fix: str
) -> Finding:
    return Finding(
        id=RULE.id,
        severity=severity,
        node=name,
        devices=(gpu_address(device),),
        title=f"GPU {device.get('index')} {words}",
        evidence=(f"NVML of GPU {device.get('index')}: {evidence}",),
        effect=effect,
        fix=fix,
    )
