"""A bond that has lost one of its ports."""

from __future__ import annotations

from dataclasses import replace

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Words
from l40s_lab.hardware.edit import change_interface
from l40s_lab.hardware.machine import NodeMachine

FAULT = Fault(
    name="bond-slave-down",
    argument="[DEV]",
    summary="the port DEV of a bond (default: its last) loses its link; the bond continues with the others",
    shows="the slave's carrier, bonding_slave/mii_status, /proc/net/bonding, the bond's speed",
)


def change(node: NodeMachine, asked: Words) -> NodeMachine:
    """The bond is as fast as its remaining ports."""
    words.at_most(asked, 1)
    lost = words.slave(node, asked)
    node = change_interface(node, lost.name, lambda one: replace(one, carrier=False))
    left = sum(one.speed_mbps for one in node.interfaces if one.bond == lost.bond and one.linked)
    return change_interface(node, lost.bond, lambda one: replace(one, speed_mbps=left, carrier=left > 0))
