"""Snapshot to topology: one machine as its own files show it. However broken they are, something comes out.

PCI functions, switches, GPUs and RDMA ports have files of their own; interfaces, NUMA domains and CPU are read here.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from orchestrator.model.snapshot import Snapshot, part
from orchestrator.model.topology import CpuModel, Interface, NumaDomain, PciDevice, Topology
from orchestrator.topology.gpus import NVIDIA_GPUS, Accelerators, find_gpus, is_gpu
from orchestrator.topology.pci import nearest_function, number, pci_devices, small_number
from orchestrator.topology.rdma import find_rdma_ports, rdma_functions
from orchestrator.topology.stated import find_unread, mappings, pasted, sockets_of, stated_of, with_stated
from orchestrator.topology.switches import SwitchPlaces, find_switches


def build(snapshot: Snapshot, accelerators: Accelerators = NVIDIA_GPUS) -> Topology:
    """The topology of one node. What could not be read is absent or empty in it, and named in `unread`; nothing
    raises."""
    devices = pci_devices(snapshot)
    functions = rdma_functions(snapshot, devices)
    serving = {device.key for device in devices if is_gpu(device, accelerators)} | set(functions.values())
    switches = find_switches(devices, serving)
    places = SwitchPlaces(switches)
    interfaces = find_interfaces(snapshot, devices)
    stated = stated_of(snapshot)
    rdma = find_rdma_ports(snapshot, devices, interfaces, places)
    return Topology(
        node=snapshot.node,
        hostname=str(snapshot.host.get("hostname") or ""),
        cpu=find_cpu(snapshot),
        numa=find_numa_domains(snapshot),
        pci=devices,
        switches=switches,
        gpus=find_gpus(snapshot.nvml, devices, places, accelerators),
        rdma=with_stated(rdma, stated),
        interfaces=interfaces,
        stated=stated,
        of_text=bool(pasted(snapshot)),
        sockets=sockets_of(snapshot),
        driver=str(snapshot.nvml.get("driver") or ""),
        nvml_error=str(snapshot.nvml.get("error") or ""),
        unread=find_unread(snapshot, devices, rdma, functions),
    )


_CLASS = "/sys/class/net"


def find_interfaces(snapshot: Snapshot, devices: Sequence[PciDevice]) -> tuple[Interface, ...]:
    """Every interface, in order of name."""
    functions, by_name = {device.key for device in devices}, part(snapshot.host, "addresses")
    folders = (name for name in snapshot.names(_CLASS) if f"{_CLASS}/{name}" not in snapshot.files)  # bonding_masters
    names = sorted({*folders, *(name for name in by_name if isinstance(name, str))})
    return tuple(_interface(snapshot, name, functions, by_name.get(name)) for name in names)


def _interface(snapshot: Snapshot, name: str, functions: Collection[str], addresses: Any) -> Interface:
    folder = snapshot.realpath(f"{_CLASS}/{name}")
    linked = (f"{folder}/{link}" for link in ("device", "master"))
    device, master = (snapshot.realpath(link) if link in snapshot.links else "" for link in linked)
    key = nearest_function(device, functions)
    return Interface(
        name=name,
        key=key,
        address=key.rpartition("/")[2].lower(),
        mac=snapshot.text(f"{folder}/address"),
        mtu=max(0, number(snapshot.text(f"{folder}/mtu"))),
        operstate=snapshot.text(f"{folder}/operstate"),
        carrier={"1": True, "0": False}.get(snapshot.text(f"{folder}/carrier")),
        speed_mbps=max(0, number(snapshot.text(f"{folder}/speed"))),
        ipv4=_addresses(addresses, "inet"),
        ipv6=_addresses(addresses, "inet6"),
        bond=master.rpartition("/")[2] if master and snapshot.names(f"{master}/bonding") else "",
        slaves=tuple(snapshot.text(f"{folder}/bonding/slaves").split()),
        physical=bool(device),
    )


def _addresses(raw: Any, family: str) -> tuple[str, ...]:
    """Addresses with prefix length, as far as they are addresses."""
    own = (entry for entry in mappings(raw) if entry.get("family") == family)
    texts = (f"{entry.get('address')}/{entry.get('prefixlen')}" for entry in own)
    return tuple(text for text in texts if _is_interface_address(text, 4 if family == "inet" else 6))


def _is_interface_address(text: str, version: int) -> bool:
    try:
        return ipaddress.ip_interface(text).version == version
    except ValueError:
        return False


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
    spans = ((ones.start(), ones.end() - 1) for ones in re.finditer("1+", f"{mask:b}"[::-1]))
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
    if known := _ARCHITECTURES.get(str(part(snapshot.host, "uname").get("machine"))):
        return known
    if "vendor_id" in cpuinfo or "CPU implementer" in cpuinfo:
        return "x86_64" if "vendor_id" in cpuinfo else "arm64"
    return "ppc64" if cpuinfo.get("cpu", "").startswith("POWER") else ""
