"""A GPU that has fallen off the bus (Xid 79): its link is down, and every read from it gives ones."""

from __future__ import annotations

import signal
from dataclasses import replace

from l40s_lab.faults import words
from l40s_lab.faults.gpu_card import change_gpu
from l40s_lab.faults.registry import Fault, Undo, Words
from l40s_lab.hardware.machine import NodeMachine
from l40s_lab.node.living import LivingNode

FAULT = Fault(
    name="gpu-lost",
    argument="G",
    summary="GPU G falls off the bus, and the rank that uses it dies",
    shows="NVML (GPU is lost), configuration space (ones), the link and the port above, AER, Xid 79 in the kernel log",
)


def change(node: NodeMachine, asked: Words) -> NodeMachine:
    """Its function stays in /sys until the bus is scanned again."""
    return change_gpu(node, words.gpu(node, asked), lambda card: replace(card, lost=True))


def strike(node: LivingNode, asked: Words) -> Undo:
    """The rank's next CUDA call fails, and PyTorch's NCCL watchdog aborts the process."""
    for process in node.users_of_gpu(words.gpu(node.machine, asked)):
        process.kill(signal.SIGABRT)
    return {}
