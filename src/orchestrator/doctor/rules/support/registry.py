"""How rules are written, found and run: a `Rule` decorates the function that judges a node, or all of them, in any file
of the package. And what they find, put together where several nodes have it in common."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple, TypeVar

from orchestrator.doctor import rules
from orchestrator.doctor.rules.support.cluster import Cluster, Input, Node
from orchestrator.model.finding import Finding
from orchestrator.model.gpu_facts import L40S, short_name
from orchestrator.model.per_node import collected
from orchestrator.model.topology import Area, Topology
from orchestrator.protocol.severity import Severity
from orchestrator.topology.network import port_fault
from orchestrator.topology.speed import PRICED_ON, limits
from orchestrator.topology.stated import is_whole_tree

V = TypeVar("V")
COSTLY = (Severity.STOP, Severity.SLOW)
MOST_PATHS = 6
_ORDER = {Severity.STOP: 0, Severity.SLOW: 1, Severity.UNKNOWN: 2, Severity.NOTE: 3}


INCOMPLETE = "NOT-RECORDED"
LISTED_BY = "l40s-deploy doctor --explain"
"""The command that shows every rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One diagnosis.

    id:      stable, in capitals, most general word first
    weight:  order among findings of one severity; the costliest faults have the smallest numbers
    reads:   the files and values it looks at
    needs:   what it takes for read: of a node that lacks some of it the rule says no more than that
    source:  where the rule comes from
    on_text: judges a node of which a pasted text tells too little for `check`; None where it can't
    check:   its findings
    """

    id: str
    title: str
    explain: str
    reads: tuple[str, ...]
    source: str
    weight: int = 50
    needs: tuple[Area, ...] = ()
    check: Callable[[Cluster], Iterable[Finding]] = lambda _: ()
    on_text: Callable[[Node], Sequence[Finding] | None] = lambda _: None

    def of_text(self, node: Node) -> Sequence[Finding] | None:
        """What `on_text` finds, where the whole check can't judge a pasted node; None where neither can."""
        if node.input is not Input.PASTED or not node.topology.lacks(*self.needs):
            return None
        findings = self.on_text(node)
        return findings if findings is None else [replace(judged, id=self.id, node=node.name) for judged in findings]

    def of_cluster(self, judge: Callable[[Cluster], Iterable[Finding]]) -> Rule:
        """Decorates what compares nodes: its findings say on which node they are."""
        return replace(self, check=lambda cluster: (replace(judged, id=self.id) for judged in judge(cluster)))

    def of_node(self, judge: Callable[[Node], Iterable[Finding]]) -> Rule:
        """Decorates what judges one node by itself."""
        return self.of_cluster(
            lambda cluster: (replace(judged, node=node.name) for node in cluster.nodes for judged in judge(node))
        )


def finding(
    severity: Severity,
    title: str,
    *evidence: str,
    effect: str,
    fix: str,
    devices: tuple[str, ...] = (),
    node: str = "",
) -> Finding:
    """A finding as a judge gives it: the rule adds its own id, and the node that was judged by itself."""
    return Finding(
        id="", severity=severity, node=node, devices=devices, title=title, evidence=evidence, effect=effect, fix=fix
    )


stop, slow = partial(finding, Severity.STOP), partial(finding, Severity.SLOW)
note, unknown = partial(finding, Severity.NOTE), partial(finding, Severity.UNKNOWN)


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule of the package, by id."""
    modules = [
        importlib.import_module(f"{rules.__name__}.{module_info.name}")
        for module_info in pkgutil.iter_modules(rules.__path__)
    ]
    by_id = {value.id: value for module in modules for value in vars(module).values() if isinstance(value, Rule)}
    return tuple(by_id[name] for name in sorted(by_id))


def run_rules(cluster: Cluster) -> tuple[Finding, ...]:
    """All findings, in order."""
    return in_order(_findings(cluster), list(cluster.topologies))


def in_order(findings: Iterable[Finding], names: Sequence[str]) -> tuple[Finding, ...]:
    """Stop first, then slow, each by weight, node and device. names: of the nodes, in the inventory's order."""
    weights = {rule.id: rule.weight for rule in all_rules()}
    nodes = {name: place for place, name in enumerate(names)}
    return tuple(
        sorted(
            findings,
            key=lambda judged: (
                _ORDER[judged.severity],
                weights.get(judged.id, 50),
                nodes.get(judged.node, -1),
                judged.id,
                judged.devices,
            ),
        )
    )


def _findings(cluster: Cluster) -> Iterator[Finding]:
    findings = [judged for rule in all_rules() for judged in (*_known(rule, cluster), *_by_texts(rule, cluster))]
    untold = _untold(cluster, findings)
    for finding in findings:
        if finding.severity is not Severity.UNKNOWN or finding.id not in untold.get(finding.node, ()):  # said once
            yield with_limits(_as_far_as_told(_but_what_was_found(finding, findings), cluster), cluster)


def _but_what_was_found(incomplete: Finding, findings: Iterable[Finding]) -> Finding:
    """A rule that found something in a part of what it reads did run."""
    if incomplete.id != INCOMPLETE or not incomplete.devices:
        return incomplete
    found = {
        judged.id
        for judged in findings
        if judged.severity is not Severity.UNKNOWN and judged.node in ("", incomplete.node)
    }
    left = tuple(rule for rule in incomplete.devices if rule not in found)
    _, _, words = incomplete.title.partition(" ")  # behind how many they are
    return replace(incomplete, devices=left, title=f"{len(left)} {words}")


_BY_ABSENCE = ("GPU-GROUPS-UNEVEN", "NIC-MISSING", "NIC-NOT-UNDER-SWITCH")
"""What they find may be a line of the tree that is not in a pasted text; a matrix has a column for each end, and
lspci's bus numbers have no gap."""


def _as_far_as_told(finding: Finding, cluster: Cluster) -> Finding:
    """Of a tree that somebody pasted, and whose own numbers do not show that it is whole, a line may be missing."""
    if finding.id not in _BY_ABSENCE or finding.severity not in COSTLY:
        return finding
    doubtful = {node.name for node in cluster.nodes if node.input is Input.PASTED and not _shows_all(node)}
    if finding.node not in doubtful:
        return finding
    effect = f"if every line of the tree is in the text: {finding.effect}"
    return replace(finding, severity=Severity.UNKNOWN, effect=effect)


def _shows_all(node: Node) -> bool:
    return node.topology.stated is not None or is_whole_tree(node.snapshot)


def _by_texts(rule: Rule, cluster: Cluster) -> Iterator[Finding]:
    for node in cluster.nodes:
        yield from rule.of_text(node) or ()


def _untold(cluster: Cluster, findings: Sequence[Finding]) -> dict[str, set[str]]:
    """{node whose facts were pasted, or are NCCL's file: ids of the rules that it left nothing to}"""
    partial = {node.name for node in cluster.nodes if node.input in (Input.PASTED, Input.XML)}
    untold: dict[str, set[str]] = {}
    for judged in findings:
        if judged.id == INCOMPLETE and judged.node in partial:
            untold.setdefault(judged.node, set()).update(judged.devices)
    return untold


def _known(rule: Rule, cluster: Cluster) -> Iterator[Finding]:
    """What a rule finds on the nodes of which everything that it needs was read; of the others, that it can't judge
    them, where it would find a fault in what is there of them."""
    blind = {node.name: node for node in cluster.nodes if node.topology.lacks(*rule.needs)}
    if not blind:
        yield from rule.check(cluster)
        return
    yield from rule.check(cluster.without(blind))
    doubted = [finding for finding in rule.check(cluster) if finding.severity in COSTLY]
    for name, node in blind.items():
        if rule.of_text(node) is None and any(finding.node in ("", name) for finding in doubted):
            lacking = node.topology.lacks(*rule.needs)
            areas = " and ".join(dict.fromkeys(area.area.value for area in lacking))
            yield unjudged(rule, node, areas, map(str, lacking))


def unjudged(rule: Rule, node: Node, what: str, evidence: Iterable[str]) -> Finding:
    """That a rule can't judge a node. what: as text, what could not be read; evidence: each of it with the reason."""
    return Finding(
        id=rule.id,
        severity=Severity.UNKNOWN,
        node=node.name,
        title=f"{what} could not be read; not known is whether {rule.title}",
        evidence=tuple(evidence)[:MOST_PATHS],
        effect="the fault that this rule finds may exist",
        fix=node.input.again,
    )


def with_limits(finding: Finding, cluster: Cluster) -> Finding:
    """A price says so where it does not apply: it was measured with one layout of one model, on L40S, which have no
    NVLink."""
    if PRICED_ON not in finding.effect:
        return finding
    nodes = [node for node in cluster.nodes if finding.node in ("", node.name)]
    words = _unmeasured(nodes, cluster)
    effect = f"{finding.effect}; {words}" if words else finding.effect
    alone = len(cluster.nodes) == 1 and cluster.nodes[0].input is not Input.LIVE
    if alone:
        condition, colon, cost = effect.partition(": ") if effect.startswith("if ") else ("", "", effect)
        both = f"{condition}, and four such nodes" if colon else "if four such nodes"
        effect = f"{both} serve one model: {cost}"
    return replace(finding, effect=effect)


def _unmeasured(nodes: Sequence[Node], cluster: Cluster) -> str:
    """Where these nodes differ from those on which costs were measured, '' where they do not."""
    gpus = [gpu for node in nodes for gpu in node.gpus]
    if any(gpu.nvlinks for gpu in gpus):
        return "these GPUs have NVLink, for which the cost does not apply"
    others = sorted({short_name(gpu.name) for gpu in gpus if gpu.name} - {L40S.name})
    gangs = {node.spec.gang for node in nodes}
    layout = _only({cluster.layouts.get(gang) for gang in gangs})
    return limits(layout, _only({cluster.models.get(gang) for gang in gangs}) or "", others)


def _only(values: Collection[V | None]) -> V | None:
    """What all gangs have in common; None where they differ."""
    return next(iter(values)) if len(values) == 1 else None


def devices_to_mark(finding: Finding) -> Sequence[str]:
    """The devices that a drawing marks; none for a note or an unknown. A finding that names places on the PCI bus is
    marked there, not on the ports that it names with them."""
    if finding.severity not in COSTLY:
        return ()
    return [device for device in finding.devices if ":" in device] or finding.devices


def marks_of(topology: Topology, findings: Iterable[Finding]) -> dict[str, str]:
    """{device of a node: what is wrong with it}, with the finding's id: of a port its own judgement, else the rule's
    title."""
    titles = {rule.id: rule.title for rule in all_rules()}
    ports = _port_faults(topology)
    marks: dict[str, list[str]] = {}
    for judged in findings:
        if judged.node != topology.node:
            continue
        title = titles.get(judged.id, judged.title)
        of_ports = ports if judged.id in _OF_PORTS else {}
        for device in devices_to_mark(judged):
            marks.setdefault(device, []).append(f"{of_ports.get(device) or title} ({judged.id})")
    return {device: "; ".join(dict.fromkeys(words)) for device, words in marks.items()}


def _port_faults(topology: Topology) -> dict[str, str]:
    """{RDMA device or its interface: what is wrong with the port}"""
    faults = {port: fault.value for port in topology.rdma if (fault := port_fault(port, topology))}
    return {name: words for port, words in faults.items() for name in (port.device, port.netdev) if name}


_OF_PORTS = ("RDMA-PORT-DOWN", "RDMA-PORT-UNCONFIGURED")
_FEW = 4


class FindingGroup(NamedTuple):
    """A finding, and all nodes that have it in the same form; '' means the entire cluster."""

    finding: Finding
    nodes: tuple[str, ...]


def grouped(findings: Iterable[Finding]) -> list[FindingGroup]:
    """Findings in their order; those that differ in node and evidence only are put together."""
    groups = collected(
        ((judged.id, judged.severity, judged.devices, judged.title, judged.effect, judged.fix), judged)
        for judged in findings
    )
    return [FindingGroup(alike[0], tuple(judged.node for judged in alike)) for alike in groups.values()]


def who(nodes: Sequence[str], of: int) -> str:
    """'node0', 'node0, node2', 'all 4 nodes', 'node0, node1, node2, node3 and 5 more'. of: nodes there are."""
    if len(nodes) == of > 1:
        return f"all {of} nodes"
    named = ", ".join(node or "cluster" for node in nodes[:_FEW])
    return f"{named} and {len(nodes) - _FEW} more" if len(nodes) > _FEW else named
