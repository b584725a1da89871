"""What was seen of nodes and the paths between them, judged: what is wrong, and what NCCL will make of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.doctor.rules.support.cluster import Cluster, Node
from orchestrator.doctor.rules.support.registry import COSTLY, LISTED_BY, all_rules, run_rules
from orchestrator.model.chosen import no_such
from orchestrator.model.finding import Finding
from orchestrator.model.inventory import NodeSpec
from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import Topology
from orchestrator.planning import page_cache
from orchestrator.planning.steps.look import known_stack, named_stack
from orchestrator.protocol.errors import DeployError, FindingsError
from orchestrator.protocol.severity import Severity
from orchestrator.topology.distance import Groups, gpu_groups, nccl_log
from orchestrator.topology.stated import TEXT


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
        return next(
            (severity for severity in COSTLY if any(finding.severity is severity for finding in self.findings)), None
        )


def cluster_of(
    nodes: Iterable[NodeSpec],
    topologies: Mapping[str, Topology],
    snapshots: Mapping[str, Snapshot],
    *,
    saved: bool = False,
) -> Cluster:
    """What rules look at, of nodes that were looked at already, each with the stack that it was looked at for; one that
    has no file any more can't be compared with."""
    asked = {name: snapshot.host.get("stack") for name, snapshot in snapshots.items()}
    named = {name: str(facts.get("name") or "") for name, facts in asked.items() if isinstance(facts, Mapping)}
    known = {stack: known_stack(stack) for stack in set(named.values())}
    stacks = {name: stack for name, value in named.items() if (stack := known[value]) is not None}
    return Cluster(topologies, snapshots, {node.name: node for node in nodes}, stacks=stacks, saved=saved)


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
    return [finding for finding in findings if finding.severity in (COSTLY if strict else (Severity.STOP,))]


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


VERSIONS = ("2.21.5", "2.30.7")
"""What torch 2.5.1 (the articles' stack) and torch 2.14.1 (today's) bring; taken where the stack does not say."""


@dataclass(frozen=True, slots=True)
class NcclExpectation:
    """One gang under one version of NCCL.

    nodes, local_ranks: `nNodes` and the largest `localRanks` of NCCL's INFO line
    halves:             per node: its GPU groups, and why
    """

    gang: str
    version: str
    nodes: int
    local_ranks: int
    halves: Mapping[str, Groups]


def expected(cluster: Cluster, stack: str | None = None) -> tuple[NcclExpectation, ...]:
    """Every gang of two or more nodes whose GPUs are known, under the version of its stack, else under both."""
    expectations: list[NcclExpectation] = []
    for gang in cluster.gangs:
        nodes = [node for node in gang if not node.spec.spare]
        told_in_part = any(lacking.path == TEXT for node in nodes for lacking in node.topology.unread)
        if len(nodes) > 1 and any(node.gpus for node in nodes) and not told_in_part:
            expectations += [_expected(nodes, version) for version in _versions(stack or nodes[0].spec.stack)]
    return tuple(expectations)


def _expected(gang: Sequence[Node], version: str) -> NcclExpectation:
    """NCCL sees the GPUs that the gang uses, not all that the bus shows. Where one node has no usable RDMA port, it
    takes sockets for all, and no node falls apart."""
    over_rdma = all(node.usable for node in gang)
    numbers = tuple(int(part) for part in version.split("."))
    halves = {
        node.name: gpu_groups(
            replace(node.topology, gpus=node.gpus, rdma=node.topology.rdma if over_rdma else ()), numbers
        )
        for node in gang
    }
    nodes, ranks = nccl_log(halves.values())
    return NcclExpectation(gang[0].spec.gang, version, nodes, ranks, halves)


def _versions(stack: str | None) -> tuple[str, ...]:
    version = known.nccl_version if (known := named_stack(stack)) else ""
    return (version,) if version and all(part.isdecimal() for part in version.split(".")) else VERSIONS
