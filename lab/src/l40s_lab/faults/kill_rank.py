"""A rank that dies."""

from __future__ import annotations

from l40s_lab.faults import words
from l40s_lab.faults.engine_process import rank
from l40s_lab.faults.registry import Fault, Undo, Words
from l40s_lab.node.living import LivingNode

FAULT = Fault(
    name="kill-rank",
    argument="R [SIGNAL]",
    summary="the process of TP rank R gets SIGNAL (default: KILL, as from the OOM killer)",
    shows="the process is gone, and its GPU memory is free",
    lasting=False,
)


def strike(node: LivingNode, asked: Words) -> Undo:
    """Kills only that process."""
    words.at_most(asked, 2)
    number = words.signal_number(asked, 1)
    rank(node, asked).kill(number)
    return {}
