"""A driver that hangs: nvidia-smi and every other caller waits forever."""

from __future__ import annotations

from dataclasses import replace

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Words
from l40s_lab.hardware.machine import NodeMachine

FAULT = Fault(
    name="nvml-wedged",
    summary="the NVIDIA driver hangs: NVML calls never return",
    shows="NVML (no answer), Xid 119 in the kernel log",
)


def change(node: NodeMachine, asked: Words) -> NodeMachine:
    """The driver's files are still readable as usual."""
    words.at_most(asked, 0)
    machine = node.machine
    return replace(node, machine=replace(machine, system=replace(machine.system, wedged=True)))
