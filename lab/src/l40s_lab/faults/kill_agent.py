"""An agent, or its guardian, that dies: killed by a user, or by the kernel when memory ran out."""

from __future__ import annotations

from collections.abc import Sequence

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Undo, Words
from l40s_lab.node.living import LivingNode
from l40s_lab.processes import Identity
from orchestrator.model.errors import InputError

FAULT = Fault(
    name="kill-agent",
    summary="the node agent is killed (SIGKILL)",
    shows="the agent's process is gone; its engine must end too",
    lasting=False,
)


def strike(node: LivingNode, asked: Words) -> Undo:
    """Kills agents only, not the processes that they started."""
    words.at_most(asked, 0)
    return kill(node, node.agents(), FAULT.name)


def kill(node: LivingNode, processes: Sequence[Identity], fault: str) -> Undo:
    """Kill them; refused if there are none."""
    if not processes:
        raise InputError(f"no agent runs on {node.name}", where=fault, fix="start its gang first")
    for process in processes:
        process.kill()
    return {}
