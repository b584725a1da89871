"""Check every node and the paths between them, and report what is wrong. Changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from orchestrator.doctor.rules.support.cluster import Cluster, gangs_of
from orchestrator.doctor.rules.support.registry import LISTED_BY, all_rules, run_rules
from orchestrator.doctor.steps.connectivity import try_ways
from orchestrator.doctor.steps.look import look, named_stack
from orchestrator.gang.paths import layout_of
from orchestrator.gang.steps.status.reports import see
from orchestrator.gang.view import GangView
from orchestrator.loading.resources import Library
from orchestrator.model.chosen import chosen_nodes, no_such
from orchestrator.model.errors import DeployError, FindingsError, InputError
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Reach
from orchestrator.model.profile import Stack
from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import Topology
from orchestrator.planning import page_cache
from orchestrator.planning.memory import checkpoint_bytes
from orchestrator.protocol.planned import Layout
from orchestrator.remote.deadline import ahead
from orchestrator.remote.fleet import Fleet
from orchestrator.topology.build import build


@dataclass(frozen=True, slots=True)
class Examination:
    """What was seen, what is wrong, what of it the operator has accepted, and which nodes did not answer.

    caches: of each gang that runs, whether its nodes' page caches hold the weight files that they read
    """

    cluster: Cluster
    findings: tuple[Finding, ...]
    accepted: tuple[Finding, ...]
    failures: Mapping[str, DeployError]
    caches: Mapping[str, page_cache.Fits] = field(default_factory=dict)

    @property
    def worst(self) -> Severity | None:
        """Stop or slow, whichever is there and graver; None where nothing is wrong."""
        present = {finding.severity for finding in self.findings}
        return next((severity for severity in (Severity.STOP, Severity.SLOW) if severity in present), None)


def examine_inventory(
    inventory: Inventory, *, accept: Collection[str] = (), nodes: Collection[str] = ()
) -> Examination:
    """The nodes of these names, or all of an inventory, over connections of its own.

    Raises InputError for a node that is not there and an unknown word in `accept`.
    """
    chosen = chosen_nodes(inventory.nodes, nodes, f"{inventory.path}: --node")
    gangs = {node.gang for node in chosen.values()}
    specs = {node.name: node for node in inventory.nodes if node.gang in gangs}
    check_accept(accept, {node.name for node in inventory.nodes}, (page_cache.ID,))
    with Fleet(specs.values()) as fleet:
        return examine(fleet, specs, accept=accept, only=chosen)


def examine(
    fleet: Fleet, specs: Mapping[str, NodeSpec], *, accept: Iterable[str] = (), only: Collection[str] = ()
) -> Examination:
    """All nodes at once. A node that does not answer is among the failures, the others are examined.

    only: examine these; the others of their gangs are asked for what runs, since that is the gang's
    """
    running = ahead(lambda: see(fleet, gangs_of(specs.values())))
    looked = look(fleet, [node for node in specs.values() if not only or node.name in only])
    topologies = {name: build(snapshot) for name, snapshot in looked.values.items()}
    cluster = Cluster(topologies=topologies, snapshots=looked.values, specs=specs, stacks=stacks_of(looked.values))
    views = running.result()
    models = {view.name: view.model for view in views if view.running}
    cluster = replace(cluster, trials=try_ways(fleet, cluster), layouts=layouts_of(views), models=models)
    caches = caches_of(cluster, views)
    more = [finding for fits in caches.values() for finding in page_cache.findings(fits)]
    return replace(diagnose(cluster, looked.failures, accept=accept, more=more), caches=caches)


def caches_of(cluster: Cluster, views: Iterable[GangView]) -> dict[str, page_cache.Fits]:
    """For each gang that runs, the weight files that its nodes read beside what their page caches hold. What a gang
    that is to be started needs, its plan says."""
    gangs = {gang.name: gang for gang in gangs_of(cluster.specs.values())}
    found = {}
    for view in views:
        layout, gang = cluster.layouts.get(view.name), gangs[view.name]
        if layout is None or not view.model:
            continue
        names = [node.name for node in gang.nodes if not view.members or node.name in view.members]
        with suppress(InputError):  # a profile that is gone since
            model_bytes = checkpoint_bytes(Library.profile(view.model))
            found[view.name] = page_cache.fits(model_bytes, layout, names, cluster.topologies)
    return {name: fits for name, fits in found.items() if fits}


def layouts_of(views: Iterable[GangView]) -> dict[str, Layout]:
    """The layout of each gang that runs."""
    found = {
        view.name: layout_of([node.ranks for node in view.nodes if node.name not in view.missing])
        for view in views
        if view.running
    }
    return {name: layout for name, layout in found.items() if layout is not None}


def examine_topologies(
    topologies: Mapping[str, Topology], snapshots: Mapping[str, Snapshot], *, accept: Collection[str] = ()
) -> Examination:
    """The same on topologies that are there already; all nodes are taken for one gang."""
    check_accept(accept, topologies)
    specs = assumed_specs(topologies)
    cluster = Cluster(topologies=topologies, snapshots=snapshots, specs=specs, stacks=stacks_of(snapshots), saved=True)
    return diagnose(cluster, {}, accept=accept)


def cluster_of(
    gangs: Sequence[GangSpec], topologies: Mapping[str, Topology], snapshots: Mapping[str, Snapshot]
) -> Cluster:
    """What rules look at, of gangs whose nodes were looked at already."""
    specs = {node.name: node for gang in gangs for node in gang.nodes if node.name in topologies}
    return Cluster(topologies=topologies, snapshots=snapshots, specs=specs, stacks=stacks_of(snapshots))


def stacks_of(snapshots: Mapping[str, Snapshot]) -> dict[str, Stack]:
    """The stack that each node was looked at for; one that has no file any more can't be compared with."""
    asked = {name: snapshot.host.get("stack") for name, snapshot in snapshots.items()}
    named = {name: str(said.get("name") or "") for name, said in asked.items() if isinstance(said, Mapping)}
    known = {stack: named_stack(stack) for stack in set(named.values())}
    return {name: stack for name, value in named.items() if (stack := known[value]) is not None}


def diagnose(
    cluster: Cluster,
    failures: Mapping[str, DeployError],
    *,
    accept: Iterable[str] = (),
    more: Sequence[Finding] = (),
) -> Examination:
    """Run the rules, and set aside what the operator has accepted. more: what is no rule's to find; it comes last."""
    findings, accepted = sort_out([*run_rules(cluster), *more], cluster.specs, accept)
    return Examination(cluster=cluster, findings=findings, accepted=accepted, failures=failures)


def sort_out(
    findings: Iterable[Finding], specs: Mapping[str, NodeSpec], accept: Iterable[str]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """(what is left, what was accepted): `ID` or `ID@node` on the command line, or in the node's `l40s_accept`.

    A finding of the entire cluster is accepted by its id, on the command line or in every node's `l40s_accept`.
    """
    asked = set(accept)
    everywhere = set.intersection(*(set(spec.accept) for spec in specs.values())) if specs else set()
    left: list[Finding] = []
    accepted: list[Finding] = []
    for finding in findings:
        own = set(specs[finding.node].accept) if finding.node in specs else everywhere
        named = {finding.id, f"{finding.id}@{finding.node}"} & (asked | own)
        (accepted if named else left).append(finding)
    return tuple(left), tuple(accepted)


def check_accept(accept: Iterable[str], nodes: Collection[str], more_ids: Collection[str] = ()) -> None:
    """Raise InputError for an id or a node that does not exist: a typing error must not pass for an acceptance.

    more_ids: ids of findings that other parts make
    """
    known = {rule.id for rule in all_rules()} | set(more_ids)
    for word in accept:
        name, at, node = word.partition("@")
        if name not in known:
            raise no_such("finding", name, sorted(known), where=f"--accept {word}", lister=LISTED_BY)
        if at and node not in nodes:
            raise no_such("node", node, nodes, where=f"--accept {word}")


def forbidding(findings: Iterable[Finding], *, strict: bool) -> list[Finding]:
    """Those that no gang may run with: of severity stop, or slow where strict."""
    against = {Severity.STOP, Severity.SLOW} if strict else {Severity.STOP}
    return [finding for finding in findings if finding.severity in against]


def refuse(findings: Sequence[Finding], *, strict: bool = False) -> None:
    """Raise FindingsError with the first finding that forbids a start."""
    against = forbidding(findings, strict=strict)
    if not against:
        return
    first, more = against[0], len(against) - 1
    others = f" (and {more} more: see `l40s-deploy doctor`)" if more else ""
    place = f"@{first.node}" if first.node else ""
    raise FindingsError(
        f"{first.id}: {first.title}. {first.effect}{others}",
        where=f"node {first.node}" if first.node else "the cluster",
        fix=f"{first.fix}; or accept it with --accept {first.id}{place}",
    )


def assumed_specs(topologies: Mapping[str, Topology]) -> dict[str, NodeSpec]:
    """What an inventory might say of nodes of which none is at hand: one gang, each with the GPUs that it shows."""
    return {
        name: NodeSpec(
            name=name,
            gang="saved",
            node_rank=rank,
            reach=Reach(host=name, connection="local"),
            gpus=sum(1 for gpu in topology.gpus if not gpu.lost),
        )
        for rank, (name, topology) in enumerate(topologies.items())
    }
