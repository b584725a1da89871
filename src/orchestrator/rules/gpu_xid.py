"""Errors that the NVIDIA driver wrote into the kernel's log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from orchestrator.model.finding import Finding, Severity
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.input import as_root
from orchestrator.rules.support.registry import Rule

RULE = Rule(
    id="GPU-XID",
    title="the driver reported an Xid error of failing hardware or a hung GPU",
    explain=(
        "The kernel log goes back to the last boot. A GPU that fell off the bus or hung once is likely to do it"
        " again, and stops all 32 ranks. GPU-MISSING and GPU-HEALTH report what NVML shows of it now."
    ),
    reads=("/dev/kmsg",),
    source="NVIDIA GPU Deployment and Management Documentation, XID Errors",
    weight=9,
)
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): ([0-9]{1,4})\b")
_MEANING = {
    48: "a memory error that can't be corrected",
    63: "a memory row was marked for repair",
    64: "a memory row could not be repaired",
    74: "an error on a GPU-to-GPU link",
    79: "the GPU fell off the bus",
    94: "a contained memory error",
    95: "an uncontained memory error",
    119: "the GPU's own processor (GSP) did not respond",
    120: "the GPU's own processor (GSP) failed",
}


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding for each GPU with such an error since the last boot; unknown where the log may not be read."""
    for node in cluster.nodes:
        log = node.snapshot.host.get("kernel_log")
        if not isinstance(log, Mapping):
            continue
        lines = log.get("xid")
        if isinstance(lines, (list, tuple)):
            yield from _findings(node, [str(line) for line in lines])
        elif log.get("error") and node.nvml_devices:
            yield _unknown(node, str(log["error"]))


def _findings(node: Node, lines: Sequence[str]) -> Iterator[Finding]:
    seen: dict[str, list[tuple[int, str]]] = {}
    for line in lines:
        match = _XID.search(line)
        if match and int(match[2]) in _MEANING:
            seen.setdefault(match[1].lower(), []).append((int(match[2]), line))
    for address, errors in seen.items():
        codes = dict.fromkeys(code for code, _ in errors)
        yield Finding(
            id=RULE.id,
            severity=Severity.SLOW,
            node=node.name,
            devices=(address,),
            title=f"GPU at {address} had "
            + ", ".join(f"Xid {code} ({_MEANING[code]})" for code in codes)
            + " since the last boot",
            evidence=tuple(f"/dev/kmsg: {line.strip()[:200]}" for _, line in errors[-4:]),
            effect="if it happens again, the gang fails (loading the weights again takes minutes)",
            fix="reset the GPU or reboot, then test it with `dcgmi diag -r 3`; replace it if the error returns",
        )


def _unknown(node: Node, why: str) -> Finding:
    return Finding(
        id=RULE.id,
        severity=Severity.UNKNOWN,
        node=node.name,
        title="the kernel log could not be read for driver errors (Xid)",
        evidence=(f"/dev/kmsg: {why}",),
        effect="a GPU that failed since the last boot goes unnoticed",
        fix=as_root(node),
    )
