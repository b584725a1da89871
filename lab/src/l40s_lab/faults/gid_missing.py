"""An RDMA port for whose address the driver made no GID."""

from __future__ import annotations

from dataclasses import replace

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Words
from l40s_lab.hardware.edit import change_interface
from l40s_lab.hardware.machine import NodeMachine

FAULT = Fault(
    name="gid-missing",
    argument="[DEV]",
    summary="the port DEV (default: the first on a rail) has its address, but no GID for it",
    shows="infiniband gids, gid_attrs/types and gid_attrs/ndevs",
)


def change(node: NodeMachine, asked: Words) -> NodeMachine:
    """Only the link-local GIDs are left."""
    words.at_most(asked, 1)
    port = words.rail_port(node, asked)
    return change_interface(node, port.name, lambda one: replace(one, address_gids=False))
