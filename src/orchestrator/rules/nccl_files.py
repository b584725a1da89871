"""Files on a node that change what NCCL does behind the plan's back."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.rules.support.charms import cost
from orchestrator.rules.support.cluster import Cluster
from orchestrator.rules.support.registry import Rule

RULE = Rule(
    id="NCCL-FILES",
    title="a file on the node changes NCCL's settings",
    explain=(
        "NCCL reads every setting that the environment does not have from /etc/nccl.conf. If virtualTopology.xml"
        " exists, NCCL reads the topology from it instead of the machine."
    ),
    reads=("/etc/nccl.conf", "/var/run/nvidia-topologyd/virtualTopology.xml"),
    source="NCCL src/misc/param.cc initEnv, src/graph/topo.cc ncclTopoGetSystem",
    weight=62,
)
_CONF, _TOPOLOGY = RULE.reads


def _costs(settings: list[str]) -> list[str]:
    """What those cost that take a transport from NCCL."""
    pairs = [line.partition("=") for line in settings]
    return [f"{name.strip()}: {words}" for name, _, value in pairs if (words := cost(name.strip(), value))]


def check(cluster: Cluster) -> Iterator[Finding]:
    """One note for each file and node."""
    for node in cluster.nodes:
        lines = [line.strip() for line in node.snapshot.text(_CONF).splitlines()]
        settings = [line for line in lines if line and not line.startswith("#")]
        if settings:
            yield Finding(
                id=RULE.id,
                severity=Severity.NOTE,
                node=node.name,
                devices=(_CONF,),
                title=f"{_CONF} sets {', '.join(line.partition('=')[0] for line in settings[:6])}",
                evidence=tuple(f"{_CONF}: {line}" for line in settings[:6]),
                effect="; ".join(["they apply to every variable that the plan does not set", *_costs(settings)]),
                fix=f"remove the lines from {_CONF} on {node.name}, or compare them with `l40s-deploy plan`",
            )
        if node.snapshot.exists(_TOPOLOGY):
            yield Finding(
                id=RULE.id,
                severity=Severity.NOTE,
                node=node.name,
                devices=(_TOPOLOGY,),
                title="NCCL reads the topology from a file, not from the machine",
                evidence=(f"{_TOPOLOGY}: exists",),
                effect="NCCL may use other paths than those reported here",
                fix=f"on bare metal, remove {_TOPOLOGY}; to compare, `l40s-deploy doctor --dump-xml DIR` writes the"
                " topology of the machine",
            )
