"""An RDMA port whose IPv4 GID has a different index from the other nodes'."""

from __future__ import annotations

from dataclasses import replace

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Words
from l40s_lab.hardware.edit import change_interface
from l40s_lab.hardware.machine import NodeMachine

FAULT = Fault(
    name="gid-shifted",
    argument="[DEV]",
    summary="the port DEV (default: the first on a rail) also has an IPv6 address, which moves its IPv4 GID by two",
    shows="infiniband gids and gid_attrs, the interface's addresses",
)


def change(node: NodeMachine, asked: Words) -> NodeMachine:
    """Adds a unique local address, of the kind that routers assign (RFC 4193)."""
    words.at_most(asked, 1)
    port = words.rail_port(node, asked)
    low = port.mac.replace(":", "")[-4:]
    return change_interface(node, port.name, lambda one: replace(one, ipv6=(f"fd40:0:0:{one.rail or 0}::{low}/64",)))
