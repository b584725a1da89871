"""`l40s-deploy discover`: each node as a tree of NUMA domains, switches, GPUs, NICs and ports."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.options import add_from, add_inventory, add_json, open_inventory
from orchestrator.cli.progress import patience
from orchestrator.cli.screen import Screen, printable
from orchestrator.doctor.rules.support.registry import marks_of
from orchestrator.doctor.steps.doctor import Examination
from orchestrator.doctor.steps.recordings import discover_inventory, examine_given, given, save_snapshots
from orchestrator.model.chosen import chosen_nodes
from orchestrator.model.topology import Topology
from orchestrator.model.words import counted
from orchestrator.protocol.errors import DeployError, Exit, InputError
from orchestrator.topology.draw import TreeLine, summary, topology_json, tree
from orchestrator.topology.gpus import NVIDIA_GPUS, AcceleratorClass, Accelerators
from orchestrator.topology.network import TcpChoice
from orchestrator.topology.paths import matrix

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree as Drawn


_UNBOUNDED = 10_000

EXAMPLE = """examples:
  l40s-deploy discover                              # the tree of every node of the inventory
  l40s-deploy discover --node node1 --save seen/    # one node; its snapshot goes to seen/node1.json
  l40s-deploy discover --from seen/                 # the same trees later, without contacting the nodes
  l40s-deploy discover --from machine.tar.bz2 --accelerator 1bcf:0b4000  # what hwloc-gather-topology wrote
  l40s-deploy discover --matrix --from seen/        # path types as `nvidia-smi topo -m` prints them
  l40s-deploy discover --redact --save report/      # for a bug report: same trees and findings, no real names

A snapshot holds the raw output of the node's files and NVML, including host names, addresses and GPU serial numbers.
--redact replaces them with pseudonyms, the same ones in all snapshots of one command.
exit status: 0 done, 2 wrong input, 4 a node did not answer (the others are shown)
"""

_STYLES = {"node": "bold", "numa": "bold", "switch": "cyan", "gpu": "green", "nic": "blue"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_inventory(parser)
    add_json(parser)
    parser.add_argument("--node", action="append", default=[], metavar="NODE", help="only this node (repeatable)")
    parser.add_argument("--save", metavar="DIR", help="write one snapshot per node to DIR/NODE.json")
    parser.add_argument(
        "--redact",
        action="store_true",
        help="replace names, MAC and IP addresses, GUIDs, serial numbers and UUIDs by pseudonyms; keep the wiring",
    )
    add_from(parser)
    parser.add_argument(
        "--matrix",
        action="store_true",
        help="show path types between GPUs and NICs in the format of `nvidia-smi topo -m`",
    )
    add_accelerators(parser)
    parser.epilog = EXAMPLE


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 where every node answered, 4 else."""
    seen = _discover(args, screen)
    if args.save:
        for path in save_snapshots(seen.cluster.snapshots, Path(args.save)):
            screen.say(f"snapshot written to {path}")
    if args.json:
        screen.json(document(seen))
    elif args.matrix:
        _show_matrices(seen, screen)
    else:
        _show(seen, screen)
    return Exit.UNREACHABLE if seen.failures else 0


def _discover(args: argparse.Namespace, screen: Screen) -> Examination:
    chosen = accelerators(args)
    if args.saved:
        named = given(args.saved).only(args.node, " ".join(args.saved))
        if named.words and not args.json:
            (screen.say if args.matrix else screen.verbatim)(printable(f"recognised: {named.words}"))
        return examine_given(named, chosen, redact=args.redact)
    inventory = open_inventory(args, screen)
    count = len(chosen_nodes(inventory.nodes, args.node, inventory.path))
    with patience(screen, f"inspecting {count} node{'s' if count > 1 else ''}"):
        return discover_inventory(inventory, args.node, chosen, redact=args.redact)


def document(seen: Examination) -> dict[str, Any]:
    """The JSON of `discover`: every node's topology, and the nodes that did not answer."""
    sides = {name: choice for name, choice in seen.cluster.tcp.items() if choice.interface}
    return {
        "nodes": [topology_json(topology, sides.get(name)) for name, topology in seen.cluster.topologies.items()],
        "unreachable": [{"name": name, **failure.as_json()} for name, failure in seen.failures.items()],
    }


def _show_matrices(seen: Examination, screen: Screen) -> None:
    """One table a node; tabs stand as nvidia-smi has them, so that the two can be compared."""
    for name, topology in seen.cluster.topologies.items():
        if len(seen.cluster.topologies) > 1:
            screen.verbatim(name)
        screen.verbatim(matrix(topology))
    for name, failure in seen.failures.items():
        show_failure(name, failure, screen, "inspected")


def _show(seen: Examination, screen: Screen) -> None:
    for name, topology in seen.cluster.topologies.items():
        show_node(topology, seen.cluster.tcp.get(name), screen, marks_of(topology, seen.findings))
    for name, failure in seen.failures.items():
        show_failure(name, failure, screen, "inspected")
    screen.out.print(_totals(seen.cluster.topologies, len(seen.failures)))


def show_node(topology: Topology, tcp: TcpChoice | None, screen: Screen, marks: Mapping[str, str]) -> None:
    """One node's tree, with its counts below. marks: what is wrong, by device."""
    from rich.tree import Tree as Drawn

    root = tree(topology, tcp, marks)
    drawn = Drawn(_line(root), guide_style="dim")
    _grow(drawn, root)
    if not screen.out.is_terminal:  # what is piped into a file or a search keeps its lines whole
        screen.out.width = _UNBOUNDED
    screen.out.print(drawn)
    screen.out.print(f"  {printable(summary(topology))}", style="dim")


def _grow(drawn: Drawn, part: TreeLine) -> None:
    for child in part.children:
        _grow(drawn.add(_line(child)), child)


def _line(part: TreeLine) -> Text:
    from rich.text import Text

    line = Text(printable(part.label), style=_STYLES.get(part.kind, ""), overflow="fold")
    if part.fault:
        line.append(f"  ✗ {printable(part.fault)}", style="bold red")
    return line


def show_failure(name: str, failure: DeployError, screen: Screen, what: str) -> None:
    """Of a node that did not answer. what: was not done with it, as text"""
    screen.out.print(f"{printable(name)}: not {what}: {printable(failure.what)}", style="bold red")
    if failure.fix:
        screen.out.print(f"  fix: {printable(failure.fix)}")


def _totals(topologies: Mapping[str, Topology], unreachable: int) -> str:
    gpus = sum(len(topology.gpus) for topology in topologies.values())
    ports = [port for topology in topologies.values() for port in topology.rdma]
    active = f"{sum(port.active for port in ports)} of " if not ports or any(port.state for port in ports) else ""
    words = f"{counted(len(topologies), 'node')}, {counted(gpus, 'GPU')}, {active}{counted(len(ports), 'RDMA port')}"
    if active:
        words += " active"
    return f"{words}; {counted(unreachable, 'node')} did not answer" if unreachable else words


def add_accelerators(parser: argparse.ArgumentParser) -> None:
    """--accelerator VENDOR:CLASS, as often as needed."""
    parser.add_argument(
        "--accelerator",
        action="append",
        default=[],
        metavar="VENDOR:CLASS",
        help="also treat PCI devices of this vendor and class (hex) as GPUs, for example 1bcf:0b4000",
    )


def accelerators(args: argparse.Namespace) -> Accelerators:
    """What --accelerator adds to NVIDIA's GPUs. Raises InputError for anything but two hex numbers."""
    return (*NVIDIA_GPUS, *map(_accelerator, args.accelerator))


def _accelerator(text: str) -> AcceleratorClass:
    """`VENDOR:CLASS` as `lspci -n` prints them, the class with 4 or 6 digits."""
    match = re.fullmatch(r"(?:0x)?([0-9a-fA-F]{4}):(?:0x)?([0-9a-fA-F]{4})(?:[0-9a-fA-F]{2})?", text)
    if match is None:
        raise InputError(
            f"found {text!r}, wanted VENDOR:CLASS in hex", where="--accelerator", fix="--accelerator 1bcf:0b4000"
        )
    return AcceleratorClass(int(match[2], 16), int(match[1], 16))
