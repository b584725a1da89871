"""Kernel and BIOS settings that are known to cost speed: a table of files and what they should say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.model.finding import Finding, Severity
from orchestrator.rules.cluster import Cluster
from orchestrator.rules.registry import Rule

RULE = Rule(
    id="HOST-SETTING",
    title="a host setting costs latency",
    explain="Small things that add jitter to every one of the 122 all-reduces of a decode step.",
    reads=("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "/proc/sys/kernel/numa_balancing"),
    source="NVIDIA and NCCL tuning guides; not measured on L40S",
    weight=80,
)


@dataclass(frozen=True, slots=True)
class _Setting:
    path: str
    wanted: str
    fix: str


_SETTINGS = (
    _Setting(
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
        "performance",
        "sudo cpupower frequency-set -g performance",
    ),
    _Setting("/proc/sys/kernel/numa_balancing", "0", "sudo sysctl -w kernel.numa_balancing=0"),
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One note for each setting and node; a file that does not exist is no finding."""
    for name, _, snapshot in cluster.nodes:
        for setting in _SETTINGS:
            found = snapshot.text(setting.path)
            if found and found != setting.wanted:
                yield Finding(
                    id=RULE.id,
                    severity=Severity.NOTE,
                    node=name,
                    devices=(setting.path.rpartition("/")[2],),
                    title=f"{setting.path.rpartition('/')[2]} is {found}, {setting.wanted} is better here",
                    evidence=(f"{setting.path} = {found}",),
                    effect="more jitter in every all-reduce (not measured)",
                    fix=setting.fix,
                )
