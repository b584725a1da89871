"""Derives one machine from another: another card in a slot, or another link state, changed in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from l40s_lab.hardware.machine import Card, Gpu, Machine, NetworkInterface, Nic, NodeMachine, PciePort, PcieSwitch
from l40s_lab.hardware.pci import Function, lay_out


def change_ports(machine: Machine, change: Callable[[PciePort], PciePort]) -> Machine:
    """Apply a function to every root port and switch port, to those of a switch before the one above them."""

    def through(port: PciePort) -> PciePort:
        if isinstance(port.card, PcieSwitch):
            port = replace(port, card=replace(port.card, ports=tuple(through(below) for below in port.card.ports)))
        return change(port)

    return replace(
        machine, roots=tuple(replace(root, ports=tuple(through(port) for port in root.ports)) for root in machine.roots)
    )


def change_port_of(node: NodeMachine, card: Card, change: Callable[[PciePort], PciePort]) -> NodeMachine:
    """Apply a function to the port above this very card."""
    machine = change_ports(node.machine, lambda port: change(port) if port.card is card else port)
    return replace(node, machine=machine)


def change_interface(
    node: NodeMachine, name: str, change: Callable[[NetworkInterface], NetworkInterface]
) -> NodeMachine:
    """Apply a function to one interface; its position among the others stays."""
    interfaces = tuple(change(one) if one.name == name else one for one in node.interfaces)
    return replace(node, interfaces=interfaces)


def gpus(machine: Machine) -> tuple[Function, ...]:
    """The GPUs in NVML's order."""
    found = [one for one in lay_out(machine).functions if isinstance(one.card, Gpu)]
    return tuple(sorted(found, key=lambda one: one.address))


def nic_with(machine: Machine, netdev: str) -> tuple[Nic, Function] | None:
    """The card that has this interface as a port, with that port's function."""
    function = lay_out(machine).of_netdev(netdev)
    return (function.card, function) if function and isinstance(function.card, Nic) else None
