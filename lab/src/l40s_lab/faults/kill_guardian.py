"""A guardian that dies, and its engine with it; its agent lives on."""

from __future__ import annotations

from l40s_lab.faults import words
from l40s_lab.faults.kill_agent import kill
from l40s_lab.faults.registry import Fault, Undo, Words
from l40s_lab.node.living import LivingNode

FAULT = Fault(
    name="kill-guardian",
    summary="the process between agent and engine is killed (SIGKILL)",
    shows="the guardian's and the engine's processes are gone; the agent says so",
    lasting=False,
)


def strike(node: LivingNode, asked: Words) -> Undo:
    """Kills guardians only."""
    words.at_most(asked, 0)
    return kill(node, node.guardians(), FAULT.name)
