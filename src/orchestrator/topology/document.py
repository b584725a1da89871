"""A topology as JSON: what `discover --json` prints of a node."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from orchestrator.model.topology import Gpu, Interface, RdmaPort, Switch, Topology
from orchestrator.topology.draw import summary
from orchestrator.topology.network import PortFault, TcpChoice, gid_index, port_fault, rails
from orchestrator.topology.paths import paths


def topology_json(topology: Topology, tcp: TcpChoice | None = None) -> dict[str, Any]:
    """One node. Addresses are PCI addresses; `switch` is the address of the switch above, null on a root port."""
    addresses = {switch.key: switch.address for switch in topology.switches}
    usable = {rail.port.name for rail in rails(topology, tcp)}
    return {
        "name": topology.node,
        "hostname": topology.hostname,
        "summary": summary(topology),
        "driver": topology.driver or None,
        "nvml_error": topology.nvml_error or None,
        "cpu": asdict(topology.cpu),
        "numa": [asdict(domain) for domain in topology.numa],
        "switches": [_switch(switch, addresses) for switch in topology.switches],
        "gpus": [_gpu(gpu, addresses) for gpu in topology.gpus],
        "rdma_ports": [_port(port, addresses, topology, usable) for port in topology.rdma],
        "interfaces": [_interface(interface) for interface in topology.interfaces],
        "paths": paths_json(topology),
        "tcp": {"interface": tcp.interface, "address": tcp.address, "reason": tcp.reason} if tcp else None,
    }


def paths_json(topology: Topology) -> list[dict[str, Any]]:
    """Every pair of GPUs and of a GPU and a NIC once; type as NCCL names it, null where a PCI function is unknown."""
    return [
        {"from": pair.one, "to": pair.other, "type": pair.type.name if pair.type is not None else None}
        for pair in paths(topology)
    ]


def _some(of: object, *names: str) -> dict[str, Any]:
    """These fields, in this order."""
    return {name: getattr(of, name) for name in names}


def _switch(switch: Switch, addresses: dict[str, str]) -> dict[str, Any]:
    return {
        **_some(switch, "address", "numa_node"),
        "above": addresses.get(switch.parent_switch),
        "part_of": addresses.get(switch.merged_into),
        "link": asdict(switch.link),
        "link_max": asdict(switch.link_max),
    }


def _gpu(gpu: Gpu, addresses: dict[str, str]) -> dict[str, Any]:
    return {
        **_some(gpu, "index", "address"),
        "switch": addresses.get(gpu.switch),
        **_some(gpu, "numa_node", "name", "uuid", "memory_total", "memory_used"),
        "link": asdict(gpu.link),
        "link_max": asdict(gpu.link_max),
        "sm": gpu.sm or None,
        "nvlinks": [asdict(links) for links in gpu.nvlinks] if gpu.nvlinks is not None else None,
        "processes": [asdict(process) for process in gpu.processes],
        "lost": gpu.lost or None,
    }


def _port(port: RdmaPort, addresses: dict[str, str], topology: Topology, usable: set[str]) -> dict[str, Any]:
    fault, tables = port_fault(port, topology), port.gids_recorded or port.link_layer == "InfiniBand"
    not_known = fault is PortFault.UNREAD or not (fault or tables)
    gid, names = gid_index(port, topology), ("numa_node", "netdev", "state", "phys_state", "rate_gbps", "link_layer")
    return {
        **_some(port, "device", "port", "address"),
        "switch": addresses.get(port.switch),
        **_some(port, *names, "firmware", "board"),
        "gid_index": gid.index,
        "gid_reason": gid.reason,
        "rail": None if not_known else port.name in usable,
    }


def _interface(one: Interface) -> dict[str, Any]:
    kept = _some(one, "name", "address", "mac", "mtu", "operstate", "speed_mbps", "ipv4", "ipv6", "bond", "slaves")
    return {**kept, "address": one.address or None, "bond": one.bond or None}
