"""`l40s-deploy doctor`: what is wrong with the wiring, what it costs, how to fix it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from orchestrator.cli.options import add_from, add_inventory, add_json, add_nodes, open_inventory
from orchestrator.cli.progress import patience
from orchestrator.cli.screen import Screen, printable
from orchestrator.doctor.commands.discover import accelerators, add_accelerators, show_node
from orchestrator.doctor.commands.examples import add_example, example_folder, show_examples
from orchestrator.doctor.commands.findings import document, show, show_heads
from orchestrator.doctor.netplan import BOND_FILE, NodeFiles, lacking
from orchestrator.doctor.rules.support.registry import LISTED_BY, marks_of
from orchestrator.doctor.steps.doctor import Examination, NcclExpectation, expected
from orchestrator.doctor.steps.recordings import dump_xml, examine_given, given, write_netplan
from orchestrator.doctor.steps.trials import labels_of
from orchestrator.gang.steps.examination import examined_nodes
from orchestrator.gang.steps.operation import connected
from orchestrator.model.chosen import no_such
from orchestrator.model.words import counted
from orchestrator.protocol.errors import Exit, InputError
from orchestrator.protocol.looks import LabelsAnswer
from orchestrator.rooms import answers
from orchestrator.topology.paths import shape

EXAMPLE = """examples:
  l40s-deploy doctor --example articles         # the articles' cluster as it was: without an inventory or a network
  l40s-deploy doctor                            # check all nodes of the inventory
  l40s-deploy doctor --node node2               # check one node, after a repair say
  l40s-deploy doctor --json                     # the findings as one JSON document
  l40s-deploy doctor --from snapshots/          # check what `discover --save snapshots/` wrote
  nvidia-smi topo -m | l40s-deploy doctor --from -
  l40s-deploy doctor --from node0=a.txt node1=b.txt  # pasted of two nodes: topo -m, lspci, NCCL's log, ...
  l40s-deploy doctor --from machine.tar.bz2 --accelerator 1bcf:0b4000  # what hwloc-gather-topology wrote
  l40s-deploy doctor --report wiring.html       # also write a page with drawings for the data centre
  l40s-deploy doctor --watch 10m                # check repeatedly; show only what is new or resolved
  l40s-deploy doctor --watch 10m --install      # the same as a systemd unit
  l40s-deploy doctor --explain ACS-REDIRECT     # explain a finding: what it reads and why

exit status: 0 no finding of severity stop or slow, 2 wrong input, 3 findings, 4 a node did not answer
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_inventory(parser)
    add_nodes(parser, "only this node (repeatable); comparisons are made among these nodes")
    add_json(parser)
    parser.add_argument(
        "--accept", action="append", default=[], metavar="ID[@NODE]", help="ignore this finding (repeatable)"
    )
    add_example(parser)
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


def _show(
    args: argparse.Namespace,
    examination: Examination,
    expectations: Sequence[NcclExpectation],
    files: Sequence[NodeFiles],
    screen: Screen,
) -> None:
    """files: of the network, with what they lack"""
    if args.example:
        show_heads(examination, screen)
        _draw(examination, screen)
    show(examination, expectations, screen)
    for file in files:
        screen.verbatim(file.diff.rstrip("\n"))


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 no finding of severity stop or slow, 3 otherwise, 4 where a node did not answer."""
    if args.explain is not None:
        return _rules(args, screen)
    for code in answers("instead", "doctor", args, screen):
        return int(code)
    if args.example == "":
        show_examples("doctor", screen)
        return 0
    _prepare(args)
    examination, labels = _examine(args, screen)
    expectations = expected(examination.cluster)
    _write(args, examination, expectations, labels, screen)
    files = lacking(examination.cluster) if args.netplan else ()
    if args.json:
        planned = {"netplan": [file.as_json() for file in files]} if args.netplan else {}
        screen.json({**document(examination, expectations), **planned})
    else:
        _show(args, examination, expectations, files, screen)
    if args.netplan:
        _write_netplan(files, args.netplan, screen)
    if examination.failures:
        return Exit.UNREACHABLE
    return Exit.FINDINGS if examination.worst else 0


def _prepare(args: argparse.Namespace) -> None:
    """What is asked for, before anything is looked at."""
    if args.example:
        args.saved = _example(args)
    if args.report:
        from orchestrator.doctor.steps.doctor_report import refuse_unwritable

        refuse_unwritable(Path(args.report))


def _example(args: argparse.Namespace) -> list[str]:
    folder = example_folder(args.example)
    if args.saved:
        raise InputError("is an input as --example is", where="--from", fix="give one of the two")
    return [folder]


def _draw(examination: Examination, screen: Screen) -> None:
    """The first node of each shape."""
    cluster = examination.cluster
    for name in {shape(topology).words: name for name, topology in reversed(list(cluster.topologies.items()))}.values():
        topology = cluster.topologies[name]
        show_node(topology, cluster.tcp.get(name), screen, marks_of(topology, examination.findings))


def _write(
    args: argparse.Namespace,
    examination: Examination,
    expectations: Sequence[NcclExpectation],
    labels: Mapping[str, LabelsAnswer],
    screen: Screen,
) -> None:
    if args.dump_xml:
        for path in dump_xml(examination.cluster.topologies, Path(args.dump_xml)):
            screen.say(f"topology written to {path}")
    if args.report:
        from orchestrator.doctor.steps.doctor_report import write_report

        write_report(examination, expectations, Path(args.report), labels)
        screen.say(f"report written to {args.report}")


def _write_netplan(files: Sequence[NodeFiles], folder: Path, screen: Screen) -> None:
    """The files, and what is left to a person."""
    paths = write_netplan(files, folder)
    for file in files:
        for words in file.open:
            screen.say(f"{file.node}: {words}")
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
    if any(BOND_FILE in file.wanted for file in files):
        screen.say(
            "a bond can't be tried: copy NODE/console/etc from the node's own console, then `sudo netplan apply`"
        )


def _examine(args: argparse.Namespace, screen: Screen) -> tuple[Examination, Mapping[str, LabelsAnswer]]:
    """And for a report the nodes' labels, by name: what was saved of a node holds none."""
    if args.saved:
        seen = given(args.saved).only(args.node, "--node")
        if seen.words and not args.json:
            screen.out.print(printable(f"recognised: {seen.words}"))
        return examine_given(seen, accelerators(args), accept=args.accept), {}
    inventory = open_inventory(args, screen)
    with connected(inventory) as operation:
        with patience(screen, f"inspecting {counted(len(args.node) or len(list(inventory.nodes)), 'node')}"):
            examination = examined_nodes(operation, accept=args.accept, nodes=args.node)
        if not args.report:
            return examination, {}
        return examination, labels_of(operation.fleet, examination.cluster.topologies).values


def _rules(args: argparse.Namespace, screen: Screen) -> int:
    from orchestrator.doctor.rules.support.catalogue import catalogue

    entries = catalogue()
    if args.explain and args.explain not in entries:
        raise no_such("finding", args.explain, entries, where="--explain", lister=LISTED_BY)
    chosen = [entries[args.explain]] if args.explain else [entry for entry in entries.values() if entry.kind == "rule"]
    if args.json:
        screen.json({"rules": [asdict(entry) for entry in chosen]})
        return 0
    for entry in chosen:
        screen.out.print(f"{entry.id:24} {entry.title}")
        more = [("why:", entry.explain), *(("reads:", path) for path in entry.reads), ("source:", entry.source)]
        for label, words in more if args.explain else ():
            screen.out.print(f"  {label:7} {words}")
    return 0
