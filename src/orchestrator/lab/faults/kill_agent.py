"""An agent that dies: killed by a user, or by the kernel when memory ran out."""

from __future__ import annotations

from orchestrator.lab.faults import words
from orchestrator.lab.faults.registry import Fault, Undo, Words
from orchestrator.lab.node.living import LivingNode
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
    agents = node.agents()
    if not agents:
        raise InputError(f"no agent runs on {node.name}", where="kill-agent", fix="start its gang first")
    for agent in agents:
        agent.kill()
    return {}
