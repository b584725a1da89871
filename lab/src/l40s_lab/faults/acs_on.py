"""Switch ports that send traffic between neighbours up to the CPU (ACS redirects)."""

from __future__ import annotations

from dataclasses import replace

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Words
from l40s_lab.hardware.edit import change_ports
from l40s_lab.hardware.machine import NodeMachine, PciePort, PcieSwitch

FAULT = Fault(
    name="acs-on",
    summary="ACS redirects traffic between cards behind one switch through the CPU, as after a BIOS change",
    shows="the ACS control register of every switch port (configuration space)",
)


def change(node: NodeMachine, asked: Words) -> NodeMachine:
    """All ports of all switches."""
    words.at_most(asked, 0)
    return replace(node, machine=change_ports(node.machine, _redirecting))


def _redirecting(port: PciePort) -> PciePort:
    if not isinstance(port.card, PcieSwitch):
        return port
    below = tuple(replace(one, acs=True) for one in port.card.ports)
    return replace(port, card=replace(port.card, ports=below))
