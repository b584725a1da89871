"""An IOMMU that translates every access of GPUs and cards."""

from __future__ import annotations

from dataclasses import replace

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Words
from l40s_lab.hardware.machine import NodeMachine

FAULT = Fault(
    name="iommu-on",
    summary="the IOMMU translates DMA, as on a kernel booted without iommu=pt",
    shows="the type of every IOMMU group, /proc/cmdline",
)


def change(node: NodeMachine, asked: Words) -> NodeMachine:
    """For every device."""
    words.at_most(asked, 0)
    machine = node.machine
    return replace(node, machine=replace(machine, system=replace(machine.system, iommu="DMA")))
