"""A network card in another slot: behind no switch, as in the articles."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Words
from l40s_lab.hardware.edit import change_interface, change_port_of, change_ports, nic_with
from l40s_lab.hardware.machine import NetworkInterface, NicPort, NodeMachine
from l40s_lab.hardware.pci import ROOT_PORT, lay_out
from orchestrator.model.errors import InputError

FAULT = Fault(
    name="nic-moved",
    argument="[DEV]",
    summary="DEV's card (default: the last on a rail) is in an empty slot of a root port, not behind its switch",
    shows="its place and bus number, slots, NUMA domain, the names of its interfaces, infiniband device links",
)


def change(node: NodeMachine, asked: Words) -> NodeMachine:
    """Interfaces are named after their slot (systemd.net-naming-scheme(7)); the addresses stay."""
    words.at_most(asked, 1)
    rails = [one for one in node.interfaces if one.rail is not None and one.rdma]
    port = words.rail_port(node, asked or tuple(one.name for one in rails[-1:]))
    found = nic_with(node.machine, port.name)
    target = _free_slot(node)
    if found is None or target is None:
        raise InputError(
            f"{port.name} can't be moved: there is no empty slot on a root port",
            where="ARG",
            fix="start a lab with another --wiring",
        )
    card, function = found
    above = function.path.split("/")[-2]
    old_slot = next((one.slot for one in lay_out(node.machine).functions if one.address == above), "")
    names = {one.netdev: _in_slot(one.netdev, old_slot, target) for one in card.ports}
    moved = replace(card, ports=tuple(_renamed(one, names) for one in card.ports))
    node = change_port_of(node, card, lambda place: replace(place, card=None))
    machine = change_ports(node.machine, lambda place: replace(place, card=moved) if place.slot == target else place)
    node = replace(node, machine=machine)
    for old, new in names.items():
        node = change_interface(node, old, partial(_named, new))
    return node


def _free_slot(node: NodeMachine) -> str | None:
    """The last empty slot on a root port."""
    on_roots = [one.slot for one in lay_out(node.machine).functions if one.kind == ROOT_PORT and one.slot]
    empty = {slot.name for slot in lay_out(node.machine).slots if not slot.now}
    return next((slot for slot in reversed(on_roots) if slot in empty), None)


def _named(name: str, interface: NetworkInterface) -> NetworkInterface:
    return replace(interface, name=name)


def _renamed(port: NicPort, names: dict[str, str]) -> NicPort:
    return replace(port, netdev=names[port.netdev])


def _in_slot(name: str, old: str, new: str) -> str:
    """ens15f0np0 of slot 15 becomes ens17f0np0 in slot 17; a name without a slot number stays."""
    return re.sub(rf"^ens{re.escape(old)}(?=\D|$)", f"ens{new}", name) if old else name
