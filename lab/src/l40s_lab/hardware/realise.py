"""Turns a machine's description into one node: with addresses, MACs and serial numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

from l40s_lab.hardware.machine import Bond, Machine, NetworkInterface, Nic, NicPort, NodeMachine, PciePort, PcieSwitch
from l40s_lab.life.addressing import FIRST_NODE, GATEWAY


def realise(machine: Machine, *, lab: str, node: str, index: int, address: str) -> NodeMachine:
    """Give a machine its place in a lab. address: the node's own, on the ordinary network."""
    seed = f"{lab}/{node}"
    bonded = {slave: bond for bond in machine.bonds for slave in bond.slaves}
    ports = list(nic_ports(machine))
    interfaces = [_of_port(port, bonded.get(port.netdev), seed, index) for port in ports]
    speeds = {interface.name: interface.speed_mbps for interface in interfaces if interface.enabled}
    interfaces += [_of_bond(bond, seed, sum(speeds.get(slave, 0) for slave in bond.slaves)) for bond in machine.bonds]
    placed = tuple(_with_address(interface, machine.primary, address) for interface in interfaces)
    return NodeMachine(machine=machine, node=node, seed=seed, interfaces=placed)


def nic_ports(machine: Machine) -> Iterator[NicPort]:
    """Every network port, in bus order."""
    for root in machine.roots:
        yield from _ports_behind(root.ports)


def _ports_behind(ports: tuple[PciePort, ...]) -> Iterator[NicPort]:
    for port in ports:
        if isinstance(port.card, PcieSwitch):
            yield from _ports_behind(port.card.ports)
        elif isinstance(port.card, Nic):
            yield from port.card.ports


def mac_of(seed: str, name: str) -> str:
    """A MAC from NVIDIA's b8:3f:d2 block, always the same for a port."""
    return ":".join(["b8", "3f", "d2", *(f"{byte:02x}" for byte in digest(seed, "mac", name)[:3])])


def digest(*words: str) -> bytes:
    """32 bytes, always the same for the same words."""
    return hashlib.sha256("\0".join(words).encode()).digest()


ALL_RAILS = "192.168.96.0/19"
"""A network that contains those of all rails."""


def rail_network(rail: int) -> str:
    """The first three numbers of a rail's addresses."""
    return f"192.168.{100 + rail}"


def rail_gateway(rail: int) -> str:
    """Address of the lab's router in a rail's network."""
    return f"{rail_network(rail)}.{GATEWAY}"


def _of_port(port: NicPort, bond: Bond | None, seed: str, index: int) -> NetworkInterface:
    rail_address = f"{rail_network(port.rail)}.{FIRST_NODE + index}/24" if port.rail is not None else None
    return NetworkInterface(
        name=port.netdev,
        mac=mac_of(seed, bond.name if bond else port.netdev),
        mtu=bond.mtu if bond else port.mtu,
        speed_mbps=port.gbps * 1000,
        ipv4=(rail_address,) if rail_address and port.state == "up" else (),
        ipv6=(f"fd00:{100 + (port.rail or 0)}::{FIRST_NODE + index}/64",) if port.ipv6 and port.state == "up" else (),
        link_layer=port.link_layer,
        enabled=port.state != "down",
        rail=port.rail,
        rdma=port.rdma,
        bond=bond.name if bond else "",
    )


def _of_bond(bond: Bond, seed: str, speed_mbps: int) -> NetworkInterface:
    return NetworkInterface(
        name=bond.name,
        mac=mac_of(seed, bond.name),
        mtu=bond.mtu,
        speed_mbps=speed_mbps,
        rdma=bond.rdma,
        slaves=bond.slaves,
    )


def _with_address(interface: NetworkInterface, primary: str, address: str) -> NetworkInterface:
    if interface.name != primary:
        return interface
    return replace(interface, primary=True, ipv4=(f"{address}/24",), enabled=True)
