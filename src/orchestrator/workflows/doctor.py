"""Look at every node, try the ways between them, and say what is wrong. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from orchestrator.model.errors import DeployError
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.inventory import Inventory, NodeSpec, Reach
from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import Topology
from orchestrator.remote.fleet import Fleet
from orchestrator.rules.cluster import Cluster
from orchestrator.rules.registry import run_rules
from orchestrator.topology.build import build
from orchestrator.topology.gpus import Accelerators
from orchestrator.workflows.connectivity import try_ways
from orchestrator.workflows.look import look


@dataclass(frozen=True, slots=True)
class Examination:
    """What was seen, what is wrong, and which nodes did not answer (by name)."""

    cluster: Cluster
    findings: tuple[Finding, ...]
    failures: Mapping[str, DeployError]

    @property
    def worst(self) -> Severity | None:
        """The gravest severity that is no note; None where nothing is wrong."""
        present = {finding.severity for finding in self.findings}
        return next((severity for severity in (Severity.STOP, Severity.SLOW) if severity in present), None)


def examine(fleet: Fleet, specs: Mapping[str, NodeSpec], *, accept: Iterable[str] = ()) -> Examination:
    """All nodes at once. A node that does not answer is among the failures, the others are examined."""
    looked = look(fleet, specs.values())
    topologies = {name: build(snapshot) for name, snapshot in looked.values.items()}
    cluster = Cluster(topologies=topologies, snapshots=looked.values, specs=specs)
    cluster = replace(cluster, trials=try_ways(fleet, cluster))
    return diagnose(cluster, looked.failures, accept=accept)


def examine_inventory(inventory: Inventory, *, accept: Iterable[str] = ()) -> Examination:
    """Every node of an inventory, over connections of its own."""
    specs = {node.name: node for node in inventory.nodes}
    with Fleet(specs.values()) as fleet:
        return examine(fleet, specs, accept=accept)


def examine_saved(
    snapshots: Mapping[str, Snapshot],
    accelerators: Accelerators = Accelerators(),  # noqa: B008 - frozen
) -> Examination:
    """The same on saved snapshots; without an inventory each node is taken to want the GPUs that it shows."""
    topologies = {name: build(snapshot, accelerators) for name, snapshot in snapshots.items()}
    specs = {name: _assumed(name, rank, topologies[name]) for rank, name in enumerate(snapshots)}
    return diagnose(Cluster(topologies=topologies, snapshots=snapshots, specs=specs), {})


def diagnose(cluster: Cluster, failures: Mapping[str, DeployError], *, accept: Iterable[str] = ()) -> Examination:
    """Run the rules and drop what the operator has accepted."""
    accepted = set(accept)
    findings = tuple(finding for finding in run_rules(cluster) if not _is_accepted(finding, accepted, cluster.specs))
    return Examination(cluster=cluster, findings=findings, failures=failures)


def _is_accepted(finding: Finding, accepted: set[str], specs: Mapping[str, NodeSpec]) -> bool:
    """`ID` or `ID@node` on the command line, or in the node's own `l40s_accept`; a stop can't be accepted away."""
    if finding.severity is Severity.STOP:
        return False
    own = set(specs[finding.node].accept) if finding.node in specs else set()
    return bool({finding.id, f"{finding.id}@{finding.node}"} & (accepted | own))


def _assumed(name: str, rank: int, topology: Topology) -> NodeSpec:
    gpus = sum(1 for gpu in topology.gpus if not gpu.lost)
    return NodeSpec(name=name, gang="saved", node_rank=rank, reach=Reach(host=name, connection="local"), gpus=gpus)
