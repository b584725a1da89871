"""An interface with smaller frames than the rest of its network."""

from __future__ import annotations

from dataclasses import replace

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Words
from l40s_lab.hardware.edit import change_interface
from l40s_lab.hardware.machine import NodeMachine

FAULT = Fault(
    name="mtu",
    argument="[DEV [BYTES]]",
    summary="the port DEV (default: the first on a rail) gets an MTU of BYTES (default: 1500); larger frames are lost",
    shows="the interface's mtu, and which packets arrive",
)


def change(node: NodeMachine, asked: Words) -> NodeMachine:
    """Between IPv6's minimum and the card's maximum."""
    words.at_most(asked, 2)
    port = words.any_port(node, asked[:1]) if asked else words.rail_port(node, ())
    size = words.number(asked, 1, what="bytes", lowest=1280, highest=9978, default=1500)
    return change_interface(node, port.name, lambda one: replace(one, mtu=size))
