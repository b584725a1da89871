"""A machine without GPUDirect RDMA: a closed driver, and nvidia-peermem is not loaded."""

from __future__ import annotations

from dataclasses import replace

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Words
from l40s_lab.hardware.machine import NodeMachine

FAULT = Fault(
    name="no-peermem",
    summary="no GPUDirect RDMA: the closed kernel driver, which has no dma-buf, and nvidia-peermem is not loaded",
    shows="/sys/module/nvidia_peermem, /proc/driver/nvidia/version",
)


def change(node: NodeMachine, asked: Words) -> NodeMachine:
    """With the open driver NCCL would not need the module."""
    words.at_most(asked, 0)
    machine = node.machine
    return replace(node, machine=replace(machine, system=replace(machine.system, peermem=False, open_driver=False)))
