"""Firmware that does not say which NUMA domain its slots belong to."""

from __future__ import annotations

from dataclasses import replace

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Words
from l40s_lab.hardware.machine import NodeMachine

FAULT = Fault(
    name="numa-unknown",
    summary="the firmware does not report the NUMA domain of the PCIe slots",
    shows="numa_node and local_cpulist of every PCI function",
)


def change(node: NodeMachine, asked: Words) -> NodeMachine:
    """Every root bus."""
    words.at_most(asked, 0)
    machine = node.machine
    return replace(node, machine=replace(machine, roots=tuple(replace(root, numa=-1) for root in machine.roots)))
