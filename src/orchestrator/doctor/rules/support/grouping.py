"""Reports once what several nodes have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.model.finding import Finding

_FEW = 4


@dataclass(frozen=True, slots=True)
class FindingGroup:
    """A finding, and all nodes that have it in the same form; '' means the entire cluster."""

    finding: Finding
    nodes: tuple[str, ...]


def grouped(findings: Iterable[Finding]) -> list[FindingGroup]:
    """Findings in their order; those that differ in node and evidence only are put together."""
    groups: dict[tuple[object, ...], tuple[Finding, list[str]]] = {}
    for one in findings:
        key = (one.id, one.severity, one.devices, one.title, one.effect, one.fix)
        groups.setdefault(key, (one, []))[1].append(one.node)
    return [FindingGroup(finding, tuple(nodes)) for finding, nodes in groups.values()]


def who(nodes: Sequence[str], of: int) -> str:
    """'node0', 'node0, node2', 'all 4 nodes', 'node0, node1, node2, node3 and 5 more'. of: nodes there are."""
    if len(nodes) == of > 1:
        return f"all {of} nodes"
    named = ", ".join(node or "cluster" for node in nodes[:_FEW])
    return f"{named} and {len(nodes) - _FEW} more" if len(nodes) > _FEW else named
