"""No engine in the virtual environment that the inventory names."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.rules.support.cluster import Cluster
from orchestrator.rules.support.installed import installed
from orchestrator.rules.support.registry import Rule

RULE = Rule(
    id="STACK-ABSENT",
    title="the stack is not installed",
    explain=(
        "Checks for python3 in the virtual environment of the node's stack (l40s_venv, else /opt/l40s/venvs/STACK)."
        " This is normal on hosts that are not prepared yet: it is a note, and the stack is not checked further."
    ),
    reads=("VENV/bin/python3", "VENV/lib/python3*/site-packages/*.dist-info"),
    source="the plan starts VENV/bin/python3 -m sglang.launch_server",
    weight=70,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One note per node; nodes that say the same are shown together."""
    for node in cluster.nodes:
        found = installed(node)
        if found is None or found.there:
            continue
        stack = cluster.stacks.get(node.name)
        name = f"the stack {stack.name}" if stack else "a stack"
        yield Finding(
            id=RULE.id,
            severity=Severity.NOTE,
            node=node.name,
            devices=(found.venv,),
            title=f"{name} is not installed: there is no python3 in {found.venv}",
            evidence=(f"{found.venv}/bin/python3 does not exist",),
            effect="`up` refuses to start until it is installed",
            fix=f"l40s-deploy prepare{f' --stack {stack.name}' if stack else ''}, or name its place with l40s_venv",
        )
