"""A node's topology out of its snapshot. However broken the files are, the answer is a topology."""

from __future__ import annotations

import re

from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import CpuModel, NumaDomain, Topology
from orchestrator.topology.gpus import Accelerators, gpus
from orchestrator.topology.interfaces import interfaces
from orchestrator.topology.pci import number, pci_devices, switch_above, switches
from orchestrator.topology.rdma import rdma_ports

NODES = "/sys/devices/system/node"
_NODE = re.compile(r"^node([0-9]{1,4})$")
_TOTAL = re.compile(r"MemTotal:\s*([0-9]{1,15}) kB")


def build(snapshot: Snapshot, accelerators: Accelerators = Accelerators()) -> Topology:  # noqa: B008 - frozen
    """Join PCI tree, NVML, RDMA devices, interfaces and NUMA domains of one node."""
    devices = pci_devices(snapshot)
    by_key = {device.key: device for device in devices}
    found = switches(devices)
    upstream = {switch.key: switch for switch in found}

    def switch_of(key: str) -> str:
        return switch_above(key, by_key, upstream)

    return Topology(
        node=snapshot.node,
        hostname=str(snapshot.host.get("hostname") or ""),
        cpu=_cpu(snapshot.text("/proc/cpuinfo")),
        numa=_numa(snapshot),
        pci=devices,
        switches=found,
        gpus=gpus(snapshot, devices, switch_of, accelerators),
        rdma=rdma_ports(snapshot, by_key, switch_of),
        interfaces=interfaces(snapshot, by_key),
        driver=str(snapshot.nvml.get("driver") or ""),
        nvml_error=str(snapshot.nvml.get("error") or ""),
    )


def _cpu(cpuinfo: str) -> CpuModel:
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, colon, value = line.partition(":")
        if not colon:
            break
        fields[name.strip()] = value.strip()
    return CpuModel(
        vendor=fields.get("vendor_id", ""),
        family=number(fields.get("cpu family", "")),
        model=number(fields.get("model", "")),
        name=fields.get("model name", ""),
    )


def _numa(snapshot: Snapshot) -> tuple[NumaDomain, ...]:
    found = []
    for name in snapshot.names(NODES):
        match = _NODE.match(name)
        if match is None:
            continue
        total = _TOTAL.search(snapshot.text(f"{NODES}/{name}/meminfo"))
        found.append(
            NumaDomain(
                node=int(match.group(1)),
                cpulist=snapshot.text(f"{NODES}/{name}/cpulist"),
                memory_bytes=int(total.group(1)) << 10 if total else 0,
            )
        )
    return tuple(sorted(found, key=lambda domain: domain.node))
