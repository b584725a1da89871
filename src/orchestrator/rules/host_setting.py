"""Kernel and BIOS settings that are known to cost speed: a table of files and their recommended values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from orchestrator.model.finding import Finding, Severity
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.pci import number

RULE = Rule(
    id="HOST-SETTING",
    title="a host setting adds latency",
    explain="Settings that add jitter to each of the 122 all-reduces of a decode step.",
    reads=(
        "/sys/devices/system/cpu/cpufreq/policy*/scaling_governor", "/sys/devices/system/cpu/cpu0/cpuidle/*",
        "/proc/sys/kernel/numa_balancing", "/proc/sys/vm/nr_hugepages",
    ),
    source="NVIDIA and NCCL tuning guides; Linux Documentation/admin-guide/pm/cpuidle.rst; not measured",
    weight=80,
)  # fmt: skip
DEEP_US = 50
"""Microseconds to wake up from: about one all-reduce of a single token."""
_CPU = "/sys/devices/system/cpu"


@dataclass(frozen=True, slots=True)
class _HostSetting:
    """found: (title, evidence) where the node has it wrong, None where it is right or not there."""

    name: str
    fix: str
    found: Callable[[Node], tuple[str, str] | None]


def _governor(node: Node) -> tuple[str, str] | None:
    policies = [f"{_CPU}/cpufreq/{name}/scaling_governor" for name in node.snapshot.names(f"{_CPU}/cpufreq")]
    governors = {path: value for path in policies if (value := node.snapshot.text(path)) and value != "performance"}
    if not governors:
        return None
    (common, count), *_ = Counter(governors.values()).most_common(1)
    first = next(path for path, value in governors.items() if value == common)
    return f"scaling_governor is {common}; performance is better here", f"{first} = {common} (of {count} policies)"


def _deep_sleep(node: Node) -> tuple[str, str] | None:
    folder = f"{_CPU}/cpu0/cpuidle"
    for state in reversed(node.snapshot.names(folder)):
        latency = number(node.snapshot.text(f"{folder}/{state}/latency"))
        if latency > DEEP_US and node.snapshot.text(f"{folder}/{state}/disable") == "0":
            name = node.snapshot.text(f"{folder}/{state}/name") or state
            evidence = f"{folder}/{state}: name = {name}, latency = {latency} us, disable = 0"
            return f"CPUs may enter sleep state {name}, which takes {latency} us to leave", evidence
    return None


def _numa_balancing(node: Node) -> tuple[str, str] | None:
    value = node.snapshot.text("/proc/sys/kernel/numa_balancing")
    if number(value) == 0:
        return None
    return f"numa_balancing is {value}; 0 is better here", f"/proc/sys/kernel/numa_balancing = {value}"


def _hugepages(node: Node) -> tuple[str, str] | None:
    """Huge pages that are set aside are memory that loading the weights has not."""
    count = number(node.snapshot.text("/proc/sys/vm/nr_hugepages"))
    size = next((line for line in node.snapshot.text("/proc/meminfo").splitlines() if line.startswith("Hugepages")), "")
    taken = count * (number(size.split()[1]) if len(size.split()) > 1 else 2048) >> 20
    total = sum(domain.memory_bytes for domain in node.topology.numa) >> 30
    if not total or taken * 4 < total:
        return None
    return f"{taken} GiB of {total} GiB of memory are reserved as huge pages", f"/proc/sys/vm/nr_hugepages = {count}"


_SETTINGS = (
    _HostSetting("scaling_governor", "run `sudo cpupower frequency-set -g performance`", _governor),
    _HostSetting(
        "cpuidle", "run `sudo cpupower idle-set -D 10`, or `sudo tuned-adm profile latency-performance`", _deep_sleep
    ),
    _HostSetting("numa_balancing", "run `sudo sysctl -w kernel.numa_balancing=0`", _numa_balancing),
    _HostSetting("nr_hugepages", "run `sudo sysctl -w vm.nr_hugepages=0`, unless something needs them", _hugepages),
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One note for each setting and node; a file that does not exist is no finding."""
    for node in cluster.nodes:
        for setting in _SETTINGS:
            found = setting.found(node)
            if found:
                yield Finding(
                    id=RULE.id,
                    severity=Severity.NOTE,
                    node=node.name,
                    devices=(setting.name,),
                    title=found[0],
                    evidence=(found[1],),
                    effect="less page cache for loading weights"
                    if setting.name == "nr_hugepages"
                    else "more jitter in every all-reduce (not measured)",
                    fix=setting.fix,
                )
