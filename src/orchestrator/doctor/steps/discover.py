"""`discover`: every node's topology, from the nodes themselves or from saved snapshots. Changes nothing."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.doctor.rules.support.cluster import Cluster
from orchestrator.doctor.steps.doctor import Examination, diagnose, stacks_of
from orchestrator.doctor.steps.given import Given, examine_given, given
from orchestrator.doctor.steps.look import look
from orchestrator.doctor.steps.recordings import save_snapshots
from orchestrator.model.errors import DeployError, VerificationDiffers
from orchestrator.model.finding import Finding
from orchestrator.model.inventory import Inventory, NodeSpec, Overrides
from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import Topology
from orchestrator.remote.fleet import Fleet
from orchestrator.topology.build import BuildOptions, build
from orchestrator.topology.network import TcpChoice
from orchestrator.topology.redaction import redact

__all__ = [
    "Discovery",
    "Given",
    "discover_given",
    "discover_inventory",
    "given",
    "save_snapshots",
]


@dataclass(frozen=True, slots=True)
class Discovery:
    """What was seen, by node; nodes that did not answer are among the failures only.

    tcp:      the TCP side of each node of a gang whose nodes share a network
    findings: what `doctor` says of the same facts, without trying the paths between nodes; the drawing is marked by it
    """

    snapshots: Mapping[str, Snapshot]
    topologies: Mapping[str, Topology]
    failures: Mapping[str, DeployError]
    tcp: Mapping[str, TcpChoice]
    findings: tuple[Finding, ...]


def discover_inventory(
    inventory: Inventory, only: Sequence[str] = (), options: BuildOptions | None = None, *, redact: bool = False
) -> Discovery:
    """Inspect every node of an inventory (or those named) over connections of its own.

    redact: everything that was seen is under pseudonyms, nodes' names too; failures keep theirs
    """
    nodes = [node for node in inventory.nodes if not only or node.name in only]
    with Fleet(nodes) as fleet:
        looked = look(fleet, nodes)
    seen = redacted(looked.values) if redact else looked.values
    specs = {seen[node.name].node: _renamed(node, seen[node.name].node) for node in nodes if node.name in seen}
    return _discovery(_by_name(seen), looked.failures, specs, options)


def discover_given(seen: Given, options: BuildOptions | None = None, *, redact: bool = False) -> Discovery:
    """The same from what --from named; all of it is taken for one gang."""
    if redact:
        hidden = redacted(seen.snapshots)
        topologies = {hidden[name].node: replace(one, node=hidden[name].node) for name, one in seen.topologies.items()}
        seen = Given(_by_name(hidden), topologies)
    return _of_examination(examine_given(seen, options))


def _by_name(snapshots: Mapping[str, Snapshot]) -> dict[str, Snapshot]:
    return {snapshot.node: snapshot for snapshot in snapshots.values()}


def _renamed(spec: NodeSpec, name: str) -> NodeSpec:
    """Under a pseudonym the inventory's addresses and names fit nothing any more."""
    return spec if spec.name == name else replace(spec, name=name, address=None, overrides=Overrides())


def _discovery(
    snapshots: Mapping[str, Snapshot],
    failures: Mapping[str, DeployError],
    specs: Mapping[str, NodeSpec],
    options: BuildOptions | None,
) -> Discovery:
    topologies = {name: build(snapshot, options) for name, snapshot in snapshots.items()}
    cluster = Cluster(topologies=topologies, snapshots=snapshots, specs=specs, stacks=stacks_of(snapshots))
    return _of_examination(diagnose(cluster, failures))


def _of_examination(seen: Examination) -> Discovery:
    cluster = seen.cluster
    return Discovery(
        snapshots=cluster.snapshots,
        topologies=cluster.topologies,
        failures=seen.failures,
        tcp={name: choice for name, choice in cluster.tcp.items() if choice.interface},
        findings=seen.findings,
    )


KEY_BYTES = 32
_ATTEMPTS = 3


def redacted(snapshots: Mapping[str, Snapshot]) -> dict[str, Snapshot]:
    """The same machines under pseudonyms, by their original names. The key is forgotten.

    Raises VerificationDiffers where something that tells who they are would stay: nothing may be shown then.
    """
    if not snapshots:
        return {}
    for _ in range(_ATTEMPTS):  # a pseudonym may happen to be another one's original
        done, trouble = _attempt(snapshots)
        if done:
            return done
    raise VerificationDiffers(
        f"data that identifies a machine would remain: {trouble}",
        where="--redact",
        fix="nothing was written. Inspect that part without --redact",
    )


def _attempt(snapshots: Mapping[str, Snapshot]) -> tuple[dict[str, Snapshot], str]:
    """Nothing and why, where it did not come out well."""
    try:
        return dict(zip(snapshots, redact(snapshots.values(), secrets.token_bytes(KEY_BYTES)), strict=True)), ""
    except ValueError as left:
        return {}, str(left)
