"""NUMA domains and the CPU's make: NCCL takes the speed between sockets from them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from orchestrator.model.snapshot import Snapshot, part
from orchestrator.model.topology import CpuModel, NumaDomain
from orchestrator.topology.pci import number, small_number

_NODES = "/sys/devices/system/node"
_LONGEST_MAP = 4096
_LARGEST_CPU = 8192
_MEM_TOTAL = re.compile(r"MemTotal:\s+([0-9]{1,15}) kB")


def find_numa_domains(snapshot: Snapshot) -> tuple[NumaDomain, ...]:
    """Every NUMA domain, by number."""
    numbers = sorted(small_number(name[4:]) for name in snapshot.names(_NODES) if name.startswith("node"))
    return tuple(_domain(snapshot, each) for each in numbers if each >= 0)


def _domain(snapshot: Snapshot, which: int) -> NumaDomain:
    folder = f"{_NODES}/node{which}"
    memory = _MEM_TOTAL.search(snapshot.text(f"{folder}/meminfo"))
    return NumaDomain(
        node=which,
        cpulist=snapshot.text(f"{folder}/cpulist") or cpulist(snapshot.text(f"{folder}/cpumap")),
        memory_bytes=int(memory[1]) * 1024 if memory else 0,
    )


def cpulist(words: str) -> str:
    """'00000000,000000ff' is '0-7'."""
    mask = number(words.replace(",", ""), 16) if len(words) <= _LONGEST_MAP else 0
    if mask <= 0:
        return ""
    cpus = [index for index in range(mask.bit_length()) if mask >> index & 1]
    spans: list[list[int]] = []
    for cpu in cpus:
        if spans and spans[-1][1] == cpu - 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if first != last else str(first) for first, last in spans)


def cpumap(spans: str) -> str:
    """'0-7' is '000000ff': words of 32 bits, the highest first, as /sys/devices/system/node/*/cpumap has them."""
    bits = 0
    for span in spans.split(",") if spans else ():
        first, _, last = span.partition("-")
        low, high = number(first, otherwise=-1), number(last or first, otherwise=-1)
        if 0 <= low <= high < _LARGEST_CPU:
            bits |= ((1 << (high - low + 1)) - 1) << low
    words = max(1, (bits.bit_length() + 31) // 32)
    return ",".join(f"{bits >> 32 * word & 0xFFFFFFFF:08x}" for word in reversed(range(words)))


def find_cpu(snapshot: Snapshot) -> CpuModel:
    """The first socket's make. Vendor, family and model are x86's, empty elsewhere."""
    facts: dict[str, str] = {}
    for line in snapshot.text("/proc/cpuinfo").splitlines():
        name, colon, value = line.partition(":")
        if not colon and facts:
            break
        facts.setdefault(name.strip(), value.strip())
    return CpuModel(
        arch=_arch(snapshot, facts),
        vendor=facts.get("vendor_id", ""),
        family=number(facts.get("cpu family", "")),
        model=number(facts.get("model", "")),
        name=facts.get("model name", ""),
    )


_ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "arm64", "ppc64le": "ppc64", "ppc64": "ppc64"}
"""As `uname -m` and as NCCL names them (src/graph/xml.cc)."""


def _arch(snapshot: Snapshot, cpuinfo: Mapping[str, str]) -> str:
    machine = str(part(snapshot.host, "uname").get("machine") or "")
    if machine in _ARCHITECTURES:
        return _ARCHITECTURES[machine]
    if "vendor_id" in cpuinfo:
        return "x86_64"
    if "CPU implementer" in cpuinfo:
        return "arm64"
    return "ppc64" if cpuinfo.get("cpu", "").startswith("POWER") else ""
