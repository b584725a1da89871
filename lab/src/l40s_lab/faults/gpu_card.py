"""Shared by the faults of GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from l40s_lab.hardware.edit import change_port_of, gpus
from l40s_lab.hardware.machine import Gpu, NodeMachine


def change_gpu(node: NodeMachine, index: int, change: Callable[[Gpu], Gpu]) -> NodeMachine:
    """Apply a function to one GPU of the node, by NVML's index."""
    card = gpus(node.machine)[index].card
    assert isinstance(card, Gpu)
    return change_port_of(node, card, lambda port: replace(port, card=change(card)))
