"""Files on a node that change what NCCL does behind the plan's back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.model.finding import Finding, Severity
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.registry import Rule
from orchestrator.rules.support.transport_cost import cost

RULE = Rule(
    id="NCCL-FILES",
    title="a file on the node changes NCCL's settings",
    explain=(
        "NCCL reads every setting that the environment does not have from .nccl.conf in the home directory of the"
        " engine's user, then from /etc/nccl.conf. If virtualTopology.xml exists, NCCL reads the topology from it"
        " instead of the machine."
    ),
    reads=("/etc/nccl.conf", "/var/run/nvidia-topologyd/virtualTopology.xml", "~/.nccl.conf of the engine's user"),
    source="NCCL src/misc/param.cc initEnvFunc, src/graph/topo.cc ncclTopoGetSystem",
    weight=62,
)
_CONF, _TOPOLOGY = RULE.reads[:2]


def check(cluster: Cluster) -> Iterator[Finding]:
    """One note for each file and node; unknown where the user's file could not be read."""
    for node in cluster.nodes:
        yield from _settings(cluster, node, _CONF, node.snapshot.text(_CONF))
        yield from _of_the_user(cluster, node)
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


def _of_the_user(cluster: Cluster, node: Node) -> Iterator[Finding]:
    said = node.snapshot.host.get("nccl_conf")
    if not isinstance(said, Mapping):
        return
    path, error = str(said.get("path") or ""), str(said.get("error") or "")
    if not error:
        yield from _settings(cluster, node, path, str(said.get("text") or ""))
        return
    yield Finding(
        id=RULE.id,
        severity=Severity.UNKNOWN,
        node=node.name,
        devices=(path,),
        title=f"{path} could not be read",
        evidence=(f"{path}: {error}",),
        effect="settings there apply to every variable that the plan does not set",
        fix=f"read {path} as the engine's user, or set ansible_become: true in the inventory",
    )


def _settings(cluster: Cluster, node: Node, path: str, text: str) -> Iterator[Finding]:
    lines = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    if not lines:
        return
    pairs = [(line.partition("=")[0], line.partition("=")[2]) for line in lines]
    costs = [f"{name}: {words}" for name, value in pairs if (words := cost(cluster, node, name, value))]
    yield Finding(
        id=RULE.id,
        severity=Severity.NOTE,
        node=node.name,
        devices=(path,),
        title=f"{path} sets {', '.join(name for name, _ in pairs[:6])}",
        evidence=tuple(f"{path}: {line}" for line in lines[:6]),
        effect="; ".join(["they apply to every variable that the plan does not set", *costs]),
        fix=f"remove the lines from {path} on {node.name}, or compare them with `l40s-deploy plan`",
    )
