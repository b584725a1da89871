"""A driver that hangs: nvidia-smi and every other caller waits forever."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.lab.faults import words
from orchestrator.lab.faults.registry import Fault, Words
from orchestrator.lab.hardware.machine import NodeMachine

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
