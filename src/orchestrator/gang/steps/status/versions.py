"""`version`: which release each node's agent is, and which stack it serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.gang.steps.status.reports import ask_report, own_report
from orchestrator.gang.view import Answer
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.errors import DeployError
from orchestrator.model.inventory import Inventory, NodeSpec
from orchestrator.remote.fleet import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVersion:
    """Of one node: what its agent was started with; empty if nothing was ever started. error: why it is unknown."""

    node: str
    gang: str
    agent: str = ""
    stack: str = ""
    model: str = ""
    state: str = ""
    error: DeployError | None = None

    def as_json(self) -> dict[str, Any]:
        """nodes[] of `version --json`."""
        told = {name: getattr(self, name) or None for name in ("agent", "stack", "model", "state")}
        return {"node": self.node, "gang": self.gang, **told, "error": self.error and self.error.as_json()}


def versions(inventory: Inventory, gangs: tuple[str, ...] = ()) -> tuple[NodeVersion, ...]:
    """Ask every node of the chosen gangs once."""
    nodes = [node for gang in chosen_gangs(inventory, gangs) for node in gang.nodes]
    with Fleet(nodes) as fleet:
        answers = fleet.on_every(ask_report)
    return tuple(
        _version(node, answers.failures.get(node.name) or own_report(node, node.gang, answers.values[node.name]))
        for node in nodes
    )


def _version(node: NodeSpec, told: Answer) -> NodeVersion:
    if isinstance(told, DeployError):
        return NodeVersion(node=node.name, gang=node.gang, error=told)
    if told is None:
        return NodeVersion(node=node.name, gang=node.gang, state="absent")
    return NodeVersion(node=node.name, gang=node.gang, agent=told.agent_version, stack=told.stack,
                       model=told.model, state=told.word)  # fmt: skip
