"""A card whose link came up with half of its lanes."""

from __future__ import annotations

from dataclasses import replace

from l40s_lab.faults.link_training import change_link
from l40s_lab.faults.registry import Fault, Words
from l40s_lab.hardware.machine import NodeMachine

FAULT = Fault(
    name="width-x8",
    argument="[G|DEV]",
    summary="the link of GPU G, or of DEV's card (default: the first on a rail), comes up with 8 lanes",
    shows="current_link_width and configuration space of card and port, NVML's link width of a GPU",
)


def change(node: NodeMachine, asked: Words) -> NodeMachine:
    """Both ends still report that they support more."""
    return change_link(node, asked, lambda port: replace(port, trained_width=8))
