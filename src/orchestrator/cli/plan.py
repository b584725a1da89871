"""`l40s-deploy plan`: what would run where, and why."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.options import add_examples, add_inventory, add_json, open_inventory
from orchestrator.cli.screen import Screen, printable
from orchestrator.model.errors import InputError
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.plan import GangPlan, NodePlan, Plan
from orchestrator.planning.document import plan_json
from orchestrator.planning.layout import degrees_of
from orchestrator.workflows.files import write_whole
from orchestrator.workflows.plan import PlanRequest, launch_scripts, plan_inventory

if TYPE_CHECKING:
    from rich.table import Table


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """What `plan` and `up` have in common: the model and what may be pinned."""
    parser.add_argument("--model", required=True, metavar="NAME", help="a profile's name or .yml file")
    parser.add_argument("--stack", metavar="NAME", help="a stack's name or .yml file (default: l40s_stack)")
    parser.add_argument("--tp", type=_degree, metavar="N", help="tensor parallel degree")
    parser.add_argument("--pp", type=_degree, metavar="N", help="pipeline parallel degree")
    parser.add_argument("--ep", type=_degree, metavar="N", help="expert parallel degree")
    parser.add_argument("--gang", action="append", default=[], metavar="GANG", help="only this gang (repeatable)")
    parser.add_argument("engine_args", nargs="*", metavar="-- FLAGS", help="further flags for the engine, after --")


def request_of(args: argparse.Namespace) -> PlanRequest:
    """The request that these options mean."""
    return PlanRequest(
        model=args.model,
        stack=args.stack,
        tp=args.tp,
        pp=args.pp,
        ep=args.ep,
        extra_args=tuple(args.engine_args),
        gangs=tuple(args.gang),
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_examples(
        parser,
        "l40s-deploy plan --model DeepSeek-V3-0324-Block64x64 --sources",
        "l40s-deploy plan --model DeepSeek-V3-0324-Block64x64 --show script --node l40s-2",
    )
    add_inventory(parser)
    add_plan_options(parser)
    parser.add_argument("--show", choices=("env", "argv", "script"), help="one node's environment, command or script")
    parser.add_argument("--node", metavar="NODE", help="the node that --show means (default: the leader)")
    parser.add_argument("--sources", action="store_true", help="say where every value comes from")
    parser.add_argument("--out", metavar="FILE", help="write the plan's JSON document to a file")
    add_json(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Make the plan and show it the way that was asked for."""
    plan = plan_inventory(open_inventory(args, screen), request_of(args)).plan
    if args.out:
        write_whole(Path(args.out), json.dumps(plan_json(plan), indent=2) + "\n")
        screen.say(f"plan {plan.plan_id} written to {args.out}")
    if args.json:
        screen.json(plan_json(plan))
    elif args.show:
        _show(args.show, _node(plan, args.node), plan, screen)
    else:
        show_plan(plan, screen, sources=args.sources)
    return 0


def show_plan(plan: Plan, screen: Screen, *, sources: bool = False) -> None:
    """The plan for a human: each gang's layout, memory, nodes and settings, then what is worth knowing."""
    for gang in plan.gangs:
        _summary(gang, screen)
        screen.out.print(_nodes(gang))
        screen.out.print(_settings(gang, sources=sources))
    for finding in plan.findings:
        _finding(finding, screen)
    screen.out.print(f"plan {plan.plan_id}, facts {plan.facts_digest}; nothing was changed")


def _summary(gang: GangPlan, screen: Screen) -> None:
    layout = gang.layout
    degrees = degrees_of(layout)
    where = f"{layout.nnodes} x {layout.gpus_per_node}"
    lines = [
        f"gang {gang.name}: {gang.model} by {gang.stack}",
        f"layout: {degrees} on {where}; rendezvous {gang.dist_init}, service {gang.service_url}",
        *gang.memory.explanation,
    ]
    for line in lines:
        screen.out.print(printable(line))


def _nodes(gang: GangPlan) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("rank", "node", "address", "TP ranks", "interface", "RDMA ports", "GID"):
        table.add_column(title, overflow="fold")
    for node in gang.nodes:
        env = dict(node.env)
        cells = (
            str(node.node_rank),
            node.name,
            node.address,
            _span(node.tp_ranks),
            env.get("GLOO_SOCKET_IFNAME", ""),
            env.get("NCCL_IB_HCA", "").lstrip("="),
            env.get("NCCL_IB_GID_INDEX", ""),
        )
        table.add_row(*(printable(cell) for cell in cells))
    return table


def _settings(gang: GangPlan, *, sources: bool) -> Table:
    """Every variable and flag once where all nodes agree, else node by node."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("setting", "value", "node") + (("source",) if sources else ()):
        table.add_column(title, overflow="fold")
    by_node = {node.name: _values(node) for node in gang.nodes}
    origins = {node.name: dict(node.sources) for node in gang.nodes}
    for name in dict.fromkeys(name for values in by_node.values() for name in values):
        for value, nodes in _grouped(name, by_node).items():
            where = "all" if len(nodes) == len(gang.nodes) else ", ".join(nodes)
            row = [name, value, where] + ([origins[nodes[0]].get(name, "")] if sources else [])
            table.add_row(*(printable(cell) for cell in row))
    return table


def _values(node: NodePlan) -> dict[str, str]:
    """Variables, then flags, with their values as one text."""
    values = dict(node.env)
    flag = ""
    for word in node.argv:
        if word.startswith("--"):
            flag = word
            values[flag] = ""
        elif flag:
            values[flag] = f"{values[flag]} {word}".strip()
    return values


def _grouped(name: str, by_node: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for node, values in by_node.items():
        if name in values:
            groups.setdefault(values[name], []).append(node)
    return groups


def _finding(finding: Finding, screen: Screen) -> None:
    style = {Severity.STOP: "bold red", Severity.SLOW: "yellow"}.get(finding.severity, "dim")
    place = f"{finding.node}: " if finding.node else ""
    screen.out.print(f"{finding.severity.value}: {finding.id}: {printable(place + finding.title)}", style=style)
    for line in (*finding.evidence, finding.effect, finding.fix and f"fix: {finding.fix}"):
        if line:
            screen.out.print(f"  {printable(line)}")


def _show(what: str, node: NodePlan, plan: Plan, screen: Screen) -> None:
    import shlex

    if what == "script":
        text = launch_scripts(plan)[node.name]
    elif what == "env":
        text = _lines(f"{name}={shlex.quote(value)}" for name, value in node.env)
    else:
        text = shlex.join(node.argv) + "\n"
    screen.out.out(printable(text), end="", highlight=False)


def _lines(words: Iterable[str]) -> str:
    return "".join(f"{word}\n" for word in words)


def _node(plan: Plan, name: str | None) -> NodePlan:
    nodes = [node for gang in plan.gangs for node in gang.nodes]
    if name is None:
        return nodes[0]
    found = next((node for node in nodes if node.name == name), None)
    if found is None:
        raise InputError(
            f"no node of this plan is called {name!r}",
            where="command line: --node",
            fix="one of: " + ", ".join(node.name for node in nodes),
        )
    return found


def _span(ranks: tuple[int, ...]) -> str:
    if len(ranks) > 1 and ranks == tuple(range(ranks[0], ranks[0] + len(ranks))):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))


def _degree(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"found {number}, wanted 1 or more")
    return number
