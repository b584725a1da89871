"""`l40s-deploy doctor`: what is wrong with the wiring, what it costs, how to fix it."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator.cli.options import add_from, add_inventory, add_json, add_nodes, open_inventory
from orchestrator.cli.progress import patience
from orchestrator.cli.screen import Screen, printable
from orchestrator.doctor.commands.discover import accelerators, add_accelerators, show_failure, show_node
from orchestrator.doctor.netplan import BOND_FILE, NodeFiles, lacking
from orchestrator.doctor.rules.support.cluster import Node
from orchestrator.doctor.rules.support.registry import LISTED_BY, grouped, marks_of, who
from orchestrator.doctor.steps.doctor import Examination, NcclExpectation, examine_inventory, expected
from orchestrator.doctor.steps.look import labels_of
from orchestrator.doctor.steps.recordings import dump_xml, examine_given, given, write_netplan
from orchestrator.loading.resources import data_dir
from orchestrator.model.chosen import no_such
from orchestrator.model.errors import Exit, InputError
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.per_node import collected
from orchestrator.model.words import counted
from orchestrator.planning import page_cache
from orchestrator.planning.commands.plan_options import advisories_json, say_advisories
from orchestrator.rooms import answers
from orchestrator.topology.draw import paths_json
from orchestrator.topology.paths import shape
from orchestrator.topology.speed import PRICED_ON
from orchestrator.topology.stated import cards_of, recognised

EXAMPLE = """examples:
  l40s-deploy doctor --example articles         the articles' cluster as it was: without an inventory or a network
  l40s-deploy doctor                            check all nodes of the inventory
  l40s-deploy doctor --node node2               check one node, after a repair say
  l40s-deploy doctor --json                     the findings as one JSON document
  l40s-deploy doctor --from snapshots/          check what `discover --save snapshots/` wrote
  nvidia-smi topo -m | l40s-deploy doctor --from -
  l40s-deploy doctor --from node0=a.txt node1=b.txt
                                                what people paste of two nodes: topo -m, lspci, NCCL's log, ...
  l40s-deploy doctor --from machine.tar.bz2 --accelerator 1bcf:0b4000
                                                a machine that hwloc-gather-topology recorded
  l40s-deploy doctor --report wiring.html       also write a page with drawings for the data centre
  l40s-deploy doctor --watch 10m                check repeatedly; show only what is new or resolved
  l40s-deploy doctor --watch 10m --install      the same as a systemd unit
  l40s-deploy doctor --explain ACS-REDIRECT     explain a finding: what it reads and why

exit status: 0 no finding of severity stop or slow, 2 wrong input, 3 findings, 4 a node did not answer
"""


EXAMPLES = ("articles", "right")
"""Folders of examples/: the articles' cluster as it was first, and put right."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_inventory(parser)
    add_nodes(parser, "only this node (repeatable); comparisons are made among these nodes")
    add_json(parser)
    parser.add_argument(
        "--accept", action="append", default=[], metavar="ID[@NODE]", help="ignore this finding (repeatable)"
    )
    parser.add_argument("--example", metavar="NAME", help=f"read a cluster that ships instead: {' or '.join(EXAMPLES)}")
    add_from(parser)
    add_accelerators(parser)
    parser.add_argument("--report", metavar="FILE", help="also write an HTML page with drawings, to send on")
    parser.add_argument(
        "--netplan",
        type=Path,
        metavar="DIR",
        help="also write what each node's network lacks to DIR/NODE/, as netplan, sysctl and systemd files, and show"
        " the difference; applies nothing",
    )
    parser.add_argument("--dump-xml", metavar="DIR", help="also write each node's NCCL topology XML to DIR/NODE.xml")
    parser.add_argument(
        "--explain",
        nargs="?",
        const="",
        metavar="ID",
        help="explain a finding or cause, and where it comes from; without ID: list every rule",
    )
    answers("options", "doctor", parser)
    parser.epilog = EXAMPLE


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 no finding of severity stop or slow, 3 otherwise, 4 where a node did not answer."""
    if args.explain is not None:
        return _rules(args, screen)
    for code in answers("instead", "doctor", args, screen):
        return int(code)
    if args.example:
        args.saved = _example(args)
    examination = _examine(args, screen)
    expectations = expected(examination.cluster)
    _write(args, examination, expectations, screen)
    files = lacking(examination.cluster) if args.netplan else ()
    if args.json:
        planned = {"netplan": [one.as_json() for one in files]} if args.netplan else {}
        screen.json({**document(examination, expectations), **planned})
    else:
        if args.example:
            _draw(examination, screen)
        show(examination, expectations, screen)
        for one in files:
            screen.verbatim(one.diff.rstrip("\n"))
    if args.netplan:
        _write_netplan(files, args.netplan, screen)
    if examination.failures:
        return Exit.UNREACHABLE
    return Exit.FINDINGS if examination.worst else 0


def _example(args: argparse.Namespace) -> list[str]:
    if args.example not in EXAMPLES:
        raise no_such("example", args.example, EXAMPLES, where="--example")
    if args.saved:
        raise InputError("is an input as --example is", where="--from", fix="give one of the two")
    return [str(data_dir("examples") / args.example)]


def _draw(examination: Examination, screen: Screen) -> None:
    """The first node of each shape."""
    cluster = examination.cluster
    for name in {shape(topology).words: name for name, topology in reversed(list(cluster.topologies.items()))}.values():
        topology = cluster.topologies[name]
        show_node(topology, cluster.tcp.get(name), screen, marks_of(topology, examination.findings))


def _write(
    args: argparse.Namespace, examination: Examination, expectations: Sequence[NcclExpectation], screen: Screen
) -> None:
    if args.dump_xml:
        for path in dump_xml(examination.cluster.topologies, Path(args.dump_xml)):
            screen.say(f"topology written to {path}")
    if args.report:
        from orchestrator.doctor.steps.report import write_report

        names = list(examination.cluster.topologies)
        labels = {} if args.saved else labels_of(open_inventory(args, None), names).values  # files hold none
        write_report(examination, expectations, Path(args.report), labels)
        screen.say(f"report written to {args.report}")


def _write_netplan(files: Sequence[NodeFiles], folder: Path, screen: Screen) -> None:
    """The files, and what is left to a person."""
    paths = write_netplan(files, folder)
    for one in files:
        for words in one.open:
            screen.say(f"{one.node}: {words}")
    if not paths:
        screen.say("the nodes lack nothing that netplan and sysctl could give them" if not files else "nothing written")
        return
    screen.say(
        f"{len(paths)} files written below {folder}; nothing was applied. New networks are only unused on these"
        " nodes: compare them with your address plan, and the MTU with the switch"
    )
    screen.say(
        f"on each node, its gang down: copy {folder}/NODE/etc to /, then `sudo netplan try` and `sudo sysctl --system`"
    )
    if any(BOND_FILE in one.wanted for one in files):
        screen.say(
            "a bond can't be tried: copy NODE/console/etc from the node's own console, then `sudo netplan apply`"
        )


def _examine(args: argparse.Namespace, screen: Screen) -> Examination:
    if args.saved:
        seen = given(args.saved).only(args.node, "--node")
        if seen.words and not args.json:
            screen.out.print(printable(f"recognised: {seen.words}"))
        return examine_given(seen, accelerators(args), accept=args.accept)
    inventory = open_inventory(args, screen)
    with patience(screen, f"inspecting {counted(len(args.node) or len(list(inventory.nodes)), 'node')}"):
        return examine_inventory(inventory, accept=args.accept, nodes=args.node)


def document(examination: Examination, expectations: Sequence[NcclExpectation] = ()) -> dict[str, Any]:
    """The JSON of `doctor`: findings, what each node has, and what NCCL's log should say of each gang."""
    return {
        "findings": [finding.as_json() for finding in examination.findings],
        "accepted": [finding.as_json() for finding in examination.accepted],
        "nodes": [_node_json(node) for node in examination.cluster.nodes],
        "nccl": [
            {
                "gang": one.gang,
                "version": one.version,
                "nNodes": one.nodes,
                "localRanks": one.local_ranks,
                "groups": {name: [list(group) for group in groups.groups] for name, groups in one.halves.items()},
                "reasons": {name: groups.reason for name, groups in one.halves.items()},
            }
            for one in expectations
        ],
        "page_cache": [
            {
                "gang": gang,
                "nodes": [
                    {"name": name, "bytes": one.needed, "room": one.room, "fits": one.fits}
                    for name, one in fits.items()
                ],
            }
            for gang, fits in examination.caches.items()
        ],
        "advisories": advisories_json(examination.cluster.stacks.values()),
        "unreachable": [{"name": name, **failure.as_json()} for name, failure in examination.failures.items()],
    }


def _node_json(node: Node) -> dict[str, Any]:
    topology = node.topology
    seen = shape(topology)
    return {
        "name": node.name,
        "role": "spare" if node.spec.spare else "member",
        "gpus": len(topology.gpus),
        "usable_gpus": len(node.gpus),
        "nics": len(topology.stated.nics)
        if topology.stated and seen.stated is not None
        else seen.nics_elsewhere + sum(group.nics for group in seen.groups),
        "switches": len(topology.switches),
        "groups": [
            {"switch": group.switch, "numa_node": group.numa_node, "gpus": group.gpus, "nics": group.nics}
            for group in seen.groups
        ],
        "between_gpus": {"inside": [path.name for path in seen.inside], "across": [path.name for path in seen.across]},
        "paths": paths_json(topology),
        **({"recognised": list(forms)} if (forms := recognised(node.snapshot)) else {}),
    }


def show(examination: Examination, expectations: Sequence[NcclExpectation], screen: Screen) -> None:
    """Findings for people, most severe first, and each machine's layout."""
    cluster, count = examination.cluster, len(examination.cluster.topologies)
    for name, failure in examination.failures.items():
        show_failure(name, failure, screen, "examined")
    show_findings(examination.findings, screen, nodes=count)
    shapes = collected((shape(topology).words, name) for name, topology in cluster.topologies.items())
    spares = [node for node in cluster.nodes if node.spec.spare]
    for line in (
        *(f"{who(names, count)}: {words}" for words, names in shapes.items()),
        *(f"{node.name}: {words}" for node in cluster.nodes if (words := _listed_cards(node))),
        *(f"{node.name}: a spare of gang {node.spec.gang}" for node in spares),
        *(f"{gang}: {page_cache.words(fits)}" for gang, fits in examination.caches.items()),
        *dict.fromkeys(_expectation(one, expectations) for one in expectations),
    ):
        screen.out.print(printable(line), style="dim")
    say_advisories(tuple(cluster.stacks.values()), screen)
    if not count:
        screen.out.print("no node was examined; the wiring is unknown", style="bold red")
        return
    gpus = sum(len(node.gpus) for node in cluster.nodes)
    screen.out.print(f"{counted(count, 'node')}, {gpus} GPUs examined: {summary(examination.findings)}")


def _listed_cards(node: Node) -> str:
    """'4 network cards: 4 x Amazon.com, Inc. Elastic Fabric Adapter (EFA)', of a list without a tree; '' for none."""
    cards = Counter(cards_of(node.snapshot))
    kinds = ", ".join(f"{number} x {name}" for name, number in cards.items())
    return f"{counted(cards.total(), 'network card')}: {kinds}" if cards else ""


def _expectation(one: NcclExpectation, all_of_them: Sequence[NcclExpectation]) -> str:
    """One line for a gang's versions that expect the same."""
    same = (one.gang, one.nodes, one.local_ranks)
    alike = [each.version for each in all_of_them if (each.gang, each.nodes, each.local_ranks) == same]
    said = f"{one.gang}: NCCL {' and '.join(alike)} should log nNodes {one.nodes} localRanks {one.local_ranks}"
    whole = [name for name, groups in one.halves.items() if not groups.over_network]
    if len(whole) == len(one.halves):
        return f"{said}: no traffic inside a node uses the RDMA cards"
    which = f"all but {', '.join(whole)} carry traffic between their halves" if whole else ""
    return f"{said}: {which or 'the halves of a node communicate'} over the RDMA cards"


def _rules(args: argparse.Namespace, screen: Screen) -> int:
    from orchestrator.doctor.rules.support.catalogue import catalogue

    entries = catalogue()
    if args.explain and args.explain not in entries:
        raise no_such("finding", args.explain, entries, where="--explain", lister=LISTED_BY)
    chosen = [entries[args.explain]] if args.explain else [one for one in entries.values() if one.kind == "rule"]
    if args.json:
        screen.json({"rules": [asdict(one) for one in chosen]})
        return 0
    for one in chosen:
        screen.out.print(f"{one.id:24} {one.title}")
        more = [("why:", one.explain), *(("reads:", path) for path in one.reads), ("source:", one.source)]
        for label, words in more if args.explain else ():
            screen.out.print(f"  {label:7} {words}")
    return 0


_BASIS = re.compile(rf" \([^()]*{re.escape(PRICED_ON)}\)$")
STYLES = {Severity.STOP: "bold red", Severity.SLOW: "yellow", Severity.NOTE: "cyan", Severity.UNKNOWN: "magenta"}


def show_findings(findings: Sequence[Finding], screen: Screen, *, nodes: int) -> None:
    """Each finding as a short paragraph; notes in one line each. What a price rests on, in brackets at its end, is said
    with the first. nodes: how many there are in all."""
    from rich.text import Text

    said: set[str] = set()
    for group in grouped(findings):
        finding, effect = group.finding, group.finding.effect
        head = Text(f"{finding.severity.value:7}", style=STYLES[finding.severity])
        head.append(f" {printable(who(group.nodes, nodes))}: ", style="bold")
        head.append(printable(finding.title), style="")
        head.append(f"  [{finding.id}]", style="dim")
        screen.out.print(head)
        if finding.severity is Severity.NOTE:
            continue
        prefix = f"{finding.node}: " if len(group.nodes) > 1 else ""
        for evidence in finding.evidence:
            screen.out.print(Text(f"          {printable(prefix + evidence)}", style="dim"))
        if basis := _BASIS.search(effect):
            effect = effect.removesuffix(basis[0]) if basis[0] in said else effect
            said.add(basis[0])
        for label, words in (("costs:", effect), ("fix:", finding.fix)):
            if words:
                screen.out.print(Text(f"        {label:6} {printable(words)}"))


def summary(findings: Sequence[Finding]) -> str:
    """'2 stop, 3 slow, 4 notes', or 'nothing wrong'."""
    counts = Counter(finding.severity for finding in findings)
    plural = {Severity.NOTE: "s"}
    words = [counted(counts[level], level.value, plural.get(level, "")) for level in Severity if counts[level]]
    return ", ".join(words) or "nothing wrong"
