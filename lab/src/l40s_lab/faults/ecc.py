"""A GPU whose memory had an error that ECC could not correct."""

from __future__ import annotations

from dataclasses import replace

from l40s_lab.faults import words
from l40s_lab.faults.gpu_card import change_gpu
from l40s_lab.faults.registry import Fault, Words
from l40s_lab.hardware.machine import NodeMachine

FAULT = Fault(
    name="ecc",
    argument="G",
    summary="GPU G counts an uncorrectable memory error and waits for a reset to remap the row",
    shows="NVML (ECC counters, remapped rows), Xid 48 and 63 in the kernel log",
)


def change(node: NodeMachine, asked: Words) -> NodeMachine:
    """One error, one row."""
    return change_gpu(node, words.gpu(node, asked), lambda card: replace(card, uncorrected=card.uncorrected + 1))
