"""`version`: which release each node's agent is, and which stack it serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.gang.steps.status.reports import ask_report, unreadable
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.errors import DeployError
from orchestrator.model.inventory import Inventory
from orchestrator.protocol.message import Unreadable
from orchestrator.protocol.report import Report
from orchestrator.protocol.verbs import ReportAnswer
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
        error = self.error.as_json() if self.error else None
        return {"node": self.node, "gang": self.gang, "agent": self.agent or None, "stack": self.stack or None,
                "model": self.model or None, "state": self.state or None, "error": error}  # fmt: skip


def versions(inventory: Inventory, gangs: tuple[str, ...] = ()) -> tuple[NodeVersion, ...]:
    """Ask every node of the chosen gangs once."""
    nodes = [node for gang in chosen_gangs(inventory, gangs) for node in gang.nodes]
    with Fleet(nodes) as fleet:
        answers = fleet.on_every(ask_report)
    found = []
    for node in nodes:
        failure = answers.failures.get(node.name)
        if failure is not None:
            found.append(NodeVersion(node=node.name, gang=node.gang, error=failure))
        else:
            found.append(_version(node.name, node.gang, answers.values[node.name]))
    return tuple(found)


def _version(node: str, gang: str, answer: ReportAnswer) -> NodeVersion:
    for raw in answer.reports:
        if isinstance(raw, dict) and raw.get("gang") == gang and raw.get("node") == node:
            report = Report.read(raw)
            if isinstance(report, Unreadable):
                return NodeVersion(node=node, gang=gang, error=unreadable(node, raw, report))
            return NodeVersion(node=node, gang=gang, agent=report.agent_version, stack=report.stack,
                               model=report.model, state=report.word)  # fmt: skip
    return NodeVersion(node=node, gang=gang, state="absent")
