"""Snapshot to topology: one machine as its own files show it. However broken they are, something comes out."""

from __future__ import annotations

from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import Topology
from orchestrator.topology.gpus import AcceleratorClass, BuildOptions, find_gpus, is_gpu
from orchestrator.topology.interfaces import find_interfaces
from orchestrator.topology.pci import pci_devices
from orchestrator.topology.processors import find_cpu, find_numa_domains
from orchestrator.topology.rdma import find_rdma_ports, rdma_functions
from orchestrator.topology.stated import sockets_of, stated_of, with_stated
from orchestrator.topology.switches import SwitchPlaces, find_switches
from orchestrator.topology.unread import find_unread

__all__ = ["AcceleratorClass", "BuildOptions", "build"]


def build(snapshot: Snapshot, options: BuildOptions | None = None) -> Topology:
    """The topology of one node. What could not be read is absent or empty in it, and named in `unread`; nothing
    raises."""
    chosen = options or BuildOptions()
    devices = pci_devices(snapshot)
    functions = rdma_functions(snapshot, devices)
    serving = {device.key for device in devices if is_gpu(device, chosen)} | set(functions.values())
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
        gpus=find_gpus(snapshot.nvml, devices, places, chosen),
        rdma=with_stated(rdma, stated),
        interfaces=interfaces,
        stated=stated,
        sockets=sockets_of(snapshot),
        driver=str(snapshot.nvml.get("driver") or ""),
        nvml_error=str(snapshot.nvml.get("error") or ""),
        unread=find_unread(snapshot, devices, rdma, functions),
    )
