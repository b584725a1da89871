"""An RDMA port that supports only RoCE v1, which routers don't forward and NCCL does not choose."""

from __future__ import annotations

from dataclasses import replace

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Words
from l40s_lab.hardware.edit import change_interface
from l40s_lab.hardware.machine import ROCE_V1, NodeMachine

FAULT = Fault(
    name="roce-v1-only",
    argument="[DEV]",
    summary="the port DEV (default: the first on a rail) makes GIDs of RoCE v1 only, as old firmware does",
    shows="infiniband gids and gid_attrs/types",
)


def change(node: NodeMachine, asked: Words) -> NodeMachine:
    """One GID per address instead of two."""
    words.at_most(asked, 1)
    port = words.rail_port(node, asked)
    return change_interface(node, port.name, lambda one: replace(one, roce=(ROCE_V1,)))
