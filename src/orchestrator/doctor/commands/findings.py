"""What the doctor found, on the screen and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.cli.screen import Screen, printable
from orchestrator.doctor.commands.discover import show_failure
from orchestrator.doctor.rules.support.cluster import Cluster, Node
from orchestrator.doctor.rules.support.registry import COSTLY, FindingGroup, grouped, who
from orchestrator.doctor.steps.doctor import Examination, NcclExpectation
from orchestrator.model.finding import Finding
from orchestrator.model.per_node import collected
from orchestrator.model.words import counted
from orchestrator.planning import page_cache
from orchestrator.planning.commands.plan_options import advisories_json, say_advisories
from orchestrator.protocol.severity import Severity
from orchestrator.topology.draw import paths_json
from orchestrator.topology.paths import shape, stated_switches
from orchestrator.topology.speed import PRICED_ON
from orchestrator.topology.stated import recognised
from orchestrator.topology.text_facts import text_facts

if TYPE_CHECKING:
    from rich.text import Text


def document(examination: Examination, expectations: Sequence[NcclExpectation] = ()) -> dict[str, Any]:
    """The JSON of `doctor`: findings, what each node has, and what NCCL's log should say of each gang."""
    return {
        "findings": [finding.as_json() for finding in examination.findings],
        "accepted": [finding.as_json() for finding in examination.accepted],
        "nodes": [_node_json(node, examination.cluster) for node in examination.cluster.nodes],
        "nccl": [
            {
                "gang": expectation.gang,
                "version": expectation.version,
                "nNodes": expectation.nodes,
                "localRanks": expectation.local_ranks,
                "groups": {
                    name: [list(group) for group in groups.groups] for name, groups in expectation.halves.items()
                },
                "reasons": {name: groups.reason for name, groups in expectation.halves.items()},
            }
            for expectation in expectations
        ],
        "page_cache": [
            {
                "gang": gang,
                "nodes": [
                    {"name": name, "bytes": fit.needed, "room": fit.room, "fits": fit.fits}
                    for name, fit in fits.items()
                ],
            }
            for gang, fits in examination.caches.items()
        ],
        "advisories": advisories_json(examination.cluster.stacks.values()),
        "unreachable": [{"name": name, **failure.as_json()} for name, failure in examination.failures.items()],
    }


def _node_json(node: Node, cluster: Cluster) -> dict[str, Any]:
    topology = node.topology
    seen = shape(topology)
    facts = _facts(node, cluster)
    return {
        "name": node.name,
        "role": "spare" if node.spec.spare else "member",
        "gpus": len(topology.gpus),
        "usable_gpus": len(node.gpus),
        "nics": seen.nics,
        "switches": len(topology.switches) if seen.tree_known or not topology.of_text else None,
        "groups": [
            {"switch": group.switch or None, "numa_node": group.numa_node, "gpus": group.gpus, "nics": group.nics}
            for group in (seen.groups or stated_switches(topology, seen))
        ],
        "between_gpus": {"inside": [path.name for path in seen.inside], "across": [path.name for path in seen.across]},
        "paths": paths_json(topology),
        **({"recognised": list(forms), "facts": facts} if (forms := recognised(node.snapshot)) or facts else {}),
    }


def show(examination: Examination, expectations: Sequence[NcclExpectation], screen: Screen) -> None:
    """Findings for people, most severe first, and each machine's layout."""
    cluster, count = examination.cluster, len(examination.cluster.topologies)
    for name, failure in examination.failures.items():
        show_failure(name, failure, screen, "examined")
    show_findings(examination.findings, screen, nodes=count)
    for line in _beside_the_findings(examination, expectations):
        screen.out.print(printable(line), style="dim")
    say_advisories(tuple(cluster.stacks.values()), screen)
    if not count:
        screen.out.print("no node was examined; the wiring is unknown", style="bold red")
        return
    gpus = sum(len(node.gpus) for node in cluster.nodes)
    screen.out.print(f"{counted(count, 'node')}, {gpus} GPUs examined: {summary(examination.findings)}")


def _beside_the_findings(examination: Examination, expectations: Sequence[NcclExpectation]) -> Iterator[str]:
    """The machines' layouts, what is known of each, spares, the page cache, and what NCCL is expected to do."""
    cluster = examination.cluster
    shapes = collected((shape(topology).words, name) for name, topology in cluster.topologies.items())
    yield from (f"{who(names, len(cluster.topologies))}: {words}" for words, names in shapes.items())
    yield from (f"{node.name}: {words}" for node in cluster.nodes for words in _facts(node, cluster))
    yield from (f"{node.name}: a spare of gang {node.spec.gang}" for node in cluster.nodes if node.spec.spare)
    yield from (f"{gang}: {page_cache.words(fits)}" for gang, fits in examination.caches.items())
    yield from dict.fromkeys(_expectation(expectation, expectations) for expectation in expectations)


def _facts(node: Node, cluster: Cluster) -> list[str]:
    others = (topology for name, topology in cluster.topologies.items() if name != node.name)
    return list(text_facts(node.topology, node.snapshot, others))


def _expectation(expectation: NcclExpectation, all_of_them: Sequence[NcclExpectation]) -> str:
    """One line for a gang's versions that expect the same."""
    same = (expectation.gang, expectation.nodes, expectation.local_ranks)
    alike = [each.version for each in all_of_them if (each.gang, each.nodes, each.local_ranks) == same]
    logged = f"nNodes {expectation.nodes} localRanks {expectation.local_ranks}"
    words = f"{expectation.gang}: NCCL {' and '.join(alike)} should log {logged}"
    whole = [name for name, groups in expectation.halves.items() if not groups.over_network]
    if len(whole) == len(expectation.halves):
        return f"{words}: no traffic inside a node uses the RDMA cards"
    which = f"all but {', '.join(whole)} carry traffic between their halves" if whole else ""
    return f"{words}: {which or 'the halves of a node communicate'} over the RDMA cards"


_BASIS = re.compile(rf" \([^()]*{re.escape(PRICED_ON)}\)$")
STYLES = {Severity.STOP: "bold red", Severity.SLOW: "yellow", Severity.NOTE: "cyan", Severity.UNKNOWN: "magenta"}


def show_heads(examination: Examination, screen: Screen) -> None:
    """What costs speed or stops, in a line each, before the drawing that shows it."""
    count = len(examination.cluster.topologies)
    for group in grouped(examination.findings):
        if group.finding.severity in COSTLY:
            screen.out.print(_head(group, count))


def _head(group: FindingGroup, nodes: int) -> Text:
    from rich.text import Text

    finding = group.finding
    head = Text(f"{finding.severity.value:7}", style=STYLES[finding.severity])
    head.append(f" {printable(who(group.nodes, nodes))}: ", style="bold")
    head.append(printable(finding.title), style="")
    head.append(f"  [{finding.id}]", style="dim")
    return head


def show_findings(findings: Sequence[Finding], screen: Screen, *, nodes: int) -> None:
    """Each finding as a short paragraph; notes in one line each. What a price rests on, in brackets at its end, is said
    with the first. nodes: how many there are in all."""
    from rich.text import Text

    shown: set[str] = set()
    for group in grouped(findings):
        finding, effect = group.finding, group.finding.effect
        screen.out.print(_head(group, nodes))
        if finding.severity is Severity.NOTE:
            continue
        prefix = f"{finding.node}: " if len(group.nodes) > 1 else ""
        for evidence in finding.evidence:
            screen.out.print(Text(f"          {printable(prefix + evidence)}", style="dim"))
        if basis := _BASIS.search(effect):
            effect = effect.removesuffix(basis[0]) if basis[0] in shown else effect
            shown.add(basis[0])
        for label, words in (("costs:", effect), ("fix:", finding.fix)):
            if words:
                screen.out.print(Text(f"        {label:7} {printable(words)}"))


def summary(findings: Sequence[Finding]) -> str:
    """'3 slow (RDMA-PORT-DOWN, TRAFFIC-ON-TCP, GPU-MODE), 4 notes', or 'nothing wrong'. What several nodes have alike
    counts once, and is named where it stops or costs speed."""
    groups = grouped(findings)
    plural = {Severity.NOTE: "s"}
    words = []
    for level in Severity:
        ids = [group.finding.id for group in groups if group.finding.severity is level]
        named = f" ({', '.join(dict.fromkeys(ids))})" if level in COSTLY else ""
        if ids:
            words.append(f"{counted(len(ids), level.value, plural.get(level, ''))}{named}")
    return ", ".join(words) or "nothing wrong"
