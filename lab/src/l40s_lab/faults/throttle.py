"""A GPU that is too hot and slows itself down."""

from __future__ import annotations

from dataclasses import replace

from l40s_lab.faults import words
from l40s_lab.faults.gpu_card import change_gpu
from l40s_lab.faults.registry import Fault, Words
from l40s_lab.hardware.machine import NodeMachine

FAULT = Fault(
    name="throttle",
    argument="G",
    summary="GPU G overheats and throttles",
    shows="NVML (temperature, clocks, clock event reasons)",
)


def change(node: NodeMachine, asked: Words) -> NodeMachine:
    """By its own thermal protection."""
    return change_gpu(node, words.gpu(node, asked), lambda card: replace(card, hot=True))
