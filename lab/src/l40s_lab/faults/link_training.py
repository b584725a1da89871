"""Shared by the faults of PCIe links: the link that an argument names."""

from __future__ import annotations

from collections.abc import Callable

from l40s_lab.faults import words
from l40s_lab.faults.registry import Words
from l40s_lab.hardware.edit import change_port_of, gpus, nic_with
from l40s_lab.hardware.machine import NodeMachine, PciePort
from orchestrator.model.errors import InputError


def change_link(node: NodeMachine, asked: Words, change: Callable[[PciePort], PciePort]) -> NodeMachine:
    """The port above the given card: a GPU's index, an RDMA device or an interface (default: one on a rail)."""
    words.at_most(asked, 1)
    if asked and asked[0].isdigit():
        card = gpus(node.machine)[words.gpu(node, asked)].card
        assert card is not None
        return change_port_of(node, card, change)
    name = (words.any_port(node, asked) if asked else words.rail_port(node, ())).name
    found = nic_with(node.machine, name)
    if found is None:
        raise InputError(f"{name} is not a port of a card", where="ARG", fix="name one of its ports")
    return change_port_of(node, found[0], change)
