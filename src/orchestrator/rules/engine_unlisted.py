"""The stack's engine version is none that its dialect was read for."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.engines.registry import UNLISTED, dialects, unlisted
from orchestrator.model.finding import Finding
from orchestrator.rules.support.cluster import Cluster
from orchestrator.rules.support.registry import Rule

RULE = Rule(
    id=UNLISTED,
    title="the engine's version is not listed by its dialect",
    explain=(
        "Flags, health paths, log lines and tuned config folders change between versions of SGLang. A dialect lists"
        " the versions whose wheels were read. Another version is treated as the nearest of them, which may be wrong."
        " `up` continues."
    ),
    reads=("the stack's engine_version and dialect",),
    source="scripts/engine_facts.py, over the wheels of every listed version",
    weight=60,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding per node with such a stack."""
    for node in cluster.nodes:
        stack = cluster.stacks.get(node.name)
        if stack is not None and stack.dialect in dialects() and (found := unlisted(stack, node=node.name)):
            yield found
