"""`lab break`, `lab heal`, `lab faults`: what can go wrong with a node, done to an emulated one."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from orchestrator.cli.options import add_examples, add_json
from orchestrator.cli.screen import Screen


def configure(verbs: Any, add_name: Callable[[argparse.ArgumentParser], None]) -> None:
    """verbs: the subparsers of `lab`; add_name: its --name option."""
    broken = verbs.add_parser("break", help="inject a fault into a node: hardware, network or processes")
    add_examples(
        broken,
        "l40s-deploy lab break node2 gpu-lost 5",
        "l40s-deploy lab break node1 nic-moved",
        "l40s-deploy lab break node2 kill-rank 19",
    )
    broken.add_argument("node", metavar="NODE")
    broken.add_argument("fault", metavar="FAULT", help="a name from `lab faults`")
    broken.add_argument("words", metavar="ARG", nargs="*", help="arguments of the fault")
    add_name(broken)
    heal = verbs.add_parser("heal", help="remove one fault, or all faults, from a node")
    add_examples(heal, "l40s-deploy lab heal node2 gpu-lost", "l40s-deploy lab heal node2")
    heal.add_argument("node", metavar="NODE")
    heal.add_argument("fault", metavar="FAULT", nargs="?", help="remove only this fault")
    add_name(heal)
    faults = verbs.add_parser("faults", help="list every fault that can be injected")
    add_examples(faults, "l40s-deploy lab faults")
    add_json(faults)


def run_break(args: argparse.Namespace, screen: Screen) -> int:
    """One fault more."""
    from l40s_lab.breaking.breaking import break_node

    screen.say(break_node(args.name, args.node, args.fault, args.words))
    return 0


def run_heal(args: argparse.Namespace, screen: Screen) -> int:
    """One fault less, or none left."""
    from l40s_lab.breaking.breaking import heal_node

    gone = heal_node(args.name, args.node, args.fault)
    screen.say(f"{args.node}: {', '.join(gone)} healed" if gone else f"{args.node} has no fault")
    return 0


def run_faults(args: argparse.Namespace, screen: Screen) -> int:
    """The list."""
    from l40s_lab.faults.registry import all_faults

    known = all_faults()
    if args.json:
        acts = ("change", "strike", "heal")
        described = [{name: value for name, value in asdict(one).items() if name not in acts} for one in known]
        screen.json({"faults": described})
        return 0
    from rich.table import Table

    table = Table(title="l40s-deploy lab break NODE FAULT [ARG]", title_justify="left", box=None, pad_edge=False)
    table.add_column("fault", no_wrap=True)
    table.add_column("what happens")
    table.add_column("level", no_wrap=True)
    for fault in known:
        table.add_row(f"{fault.name} {fault.argument}".strip(), fault.summary, _levels(fault.levels))
    screen.out.print(table)
    return 0


def _levels(levels: tuple[int, ...]) -> str:
    return "any" if levels == (0, 1, 2) else ", ".join(map(str, levels))
