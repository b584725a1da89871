"""An RDMA port without a link: its cable is unplugged, or its switch port is off."""

from __future__ import annotations

from dataclasses import replace

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Words
from l40s_lab.hardware.edit import change_interface
from l40s_lab.hardware.machine import NodeMachine

FAULT = Fault(
    name="port-down",
    argument="[DEV]",
    summary="the RDMA port DEV (default: the first on a rail) loses its link, its address and its GIDs",
    shows="infiniband state and phys_state, the interface's carrier, operstate and speed, GIDs, the kernel log",
)


def change(node: NodeMachine, asked: Words) -> NodeMachine:
    """systemd-networkd removes an address when the carrier is lost (IgnoreCarrierLoss= in systemd.network(5))."""
    words.at_most(asked, 1)
    port = words.rail_port(node, asked)
    return change_interface(node, port.name, lambda one: replace(one, carrier=False, ipv4=(), ipv6=()))
