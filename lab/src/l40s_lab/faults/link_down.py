"""An interface whose cable is cut; for a bond, the cables of all its ports."""

from __future__ import annotations

from dataclasses import replace

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Words
from l40s_lab.hardware.edit import change_interface
from l40s_lab.hardware.machine import NodeMachine

FAULT = Fault(
    name="link-down",
    argument="[DEV]",
    summary="the cable of DEV (default: the interface that carries TCP) is unplugged; addresses stay",
    shows="carrier, operstate, speed, a bond's ports, infiniband state, the kernel log, and that no packet passes",
    levels=(1, 2),
)


def change(node: NodeMachine, asked: Words) -> NodeMachine:
    """Programs that use it get no error: their connections just stall."""
    words.at_most(asked, 1)
    cut = words.any_port(node, asked)
    for name in (cut.name, *cut.slaves):
        node = change_interface(node, name, lambda one: replace(one, carrier=False))
    return node
