"""`l40s-deploy plan`: what would run where, and why."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.arguments import count
from orchestrator.cli.options import (
    add_examples,
    add_gang_option,
    add_inventory,
    add_json,
    add_layout,
    add_nodes,
    open_inventory,
)
from orchestrator.cli.screen import Screen, printable
from orchestrator.doctor.steps.look import named_stack
from orchestrator.gang.steps.standing import as_replicas
from orchestrator.model.chosen import no_such
from orchestrator.model.errors import InputError
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.inventory import Inventory
from orchestrator.model.plan import GangPlan, NodePlan, Plan
from orchestrator.model.profile import Stack
from orchestrator.model.survivors import without
from orchestrator.planning.commands.advisories import advisories_json, say_advisories
from orchestrator.planning.diff import GangDiff, by_change, side
from orchestrator.planning.layout import degrees_of
from orchestrator.planning.offers import LayoutFit
from orchestrator.planning.plan_file import plan_json
from orchestrator.planning.ports import nftables, port_uses
from orchestrator.planning.redaction import shown
from orchestrator.planning.roofline import words
from orchestrator.planning.steps.diff import diff_inventory, diff_json
from orchestrator.planning.steps.file import read_request, write_plan
from orchestrator.planning.steps.layouts import chosen, fit_words, layouts_json, layouts_of, measured_words
from orchestrator.planning.steps.plan import PlanRequest, launch_scripts, plan_inventory, unit

if TYPE_CHECKING:
    from rich.table import Table


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """What `plan` and `up` have in common: the model and what may be pinned."""
    parser.add_argument("--model", metavar="NAME", help="a profile's name or .yml file (`models` lists them)")
    parser.add_argument(
        "--plan", metavar="FILE", help="use the plan that `plan --out` wrote, if it is still valid, instead of --model"
    )
    parser.add_argument("--stack", metavar="NAME", help="a stack's name or .yml file (default: l40s_stack)")
    parser.add_argument("--tp", type=count, metavar="N", help="tensor parallel degree")
    parser.add_argument("--pp", type=count, metavar="N", help="pipeline parallel degree")
    parser.add_argument("--ep", type=count, metavar="N", help="expert parallel degree")
    parser.add_argument(
        "--attn-dp",
        type=count,
        metavar="N",
        help="attention data parallel degree: groups of ranks, each with its own requests",
    )
    add_layout(parser)
    parser.add_argument(
        "--replicas",
        action="store_true",
        help="one gang per node, named GANG-0, GANG-1, ..., for a model that fits one node",
    )
    add_gang_option(parser)
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="NODE",
        help="plan without this node: a spare takes its place, else with another layout if needed (repeatable)",
    )
    parser.add_argument("engine_args", nargs="*", metavar="-- FLAGS", help="extra engine flags, after --")


def asks(args: argparse.Namespace) -> bool:
    """Whether these options say anything of a plan."""
    return bool(args.plan or _wishes(args))


def _wishes(args: argparse.Namespace) -> bool:
    degrees = (args.tp, args.pp, args.ep, args.attn_dp, args.layout)
    return any((args.model, args.stack, *degrees, args.replicas, args.without, args.engine_args))


def request_of(args: argparse.Namespace) -> PlanRequest:
    """The request that these options mean. Raises InputError for none, and for a plan file with other wishes."""
    if args.plan:
        if _wishes(args) or args.gang:
            raise InputError(
                "--plan FILE was combined with options that the saved plan already sets",
                where="command line",
                fix="use --plan alone, or --model with its options",
            )
        return read_request(Path(args.plan))
    if not args.model:
        raise InputError(
            "no model was given", where="command line", fix="add --model NAME; run `l40s-deploy models` for the list"
        )
    if args.layout and (args.tp or args.pp or args.ep or args.attn_dp):
        raise InputError(
            "--layout was combined with --tp, --pp, --ep or --attn-dp",
            where="command line",
            fix="use --layout alone, or the degrees",
        )
    return PlanRequest(
        model=args.model,
        stack=args.stack,
        **{"tp": args.tp, "pp": args.pp, "ep": args.ep, "attn_dp": args.attn_dp, **args.layout},
        replicas=args.replicas,
        extra_args=tuple(args.engine_args),
        gangs=tuple(args.gang),
        without=tuple(args.without),
    )


_SHOWN = ("env", "argv", "script", "unit", "ports", "nftables")


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_examples(
        parser,
        "l40s-deploy plan --model DeepSeek-V3-0324-Block64x64 --sources",
        "l40s-deploy plan --model DeepSeek-V3-0324-Block64x64 --stack sglang-0.5.23 --without l40s-2",
        "l40s-deploy plan --model DeepSeek-V3-0324-Block64x64 --show script --node l40s-2",
        "l40s-deploy plan --model DeepSeek-V3-0324-Block64x64 --show nftables --node l40s-2 >l40s.nft",
        "l40s-deploy plan --model MiniMax-M2 --replicas      # one engine per node",
        "l40s-deploy plan --model DeepSeek-V3-0324-Block64x64 --out plan.json && l40s-deploy up --plan plan.json",
    )
    add_inventory(parser)
    add_plan_options(parser)
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument(
        "--show", choices=_SHOWN, help="show one part: a node's environment, command, ..., or all nodes' ports"
    )
    ways.add_argument(
        "--diff",
        action="store_true",
        help="show what would change in the running gangs, and whether that needs a restart",
    )
    add_nodes(parser, "node for --show (repeatable; default: the leader)")
    parser.add_argument("--sources", action="store_true", help="show where every value comes from")
    parser.add_argument("--out", metavar="FILE", help="also save the plan to a file for `up --plan`")
    add_json(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Make the plan and show it as requested."""
    request = request_of(args)
    inventory = without(open_inventory(args, screen), request.without)
    if request.replicas:
        inventory = as_replicas(inventory, request.gangs)
    if args.diff:
        plan, found = diff_inventory(inventory, request)
        _show_diff(plan, found, screen)
        return 0
    planned = plan_inventory(inventory, request)
    plan = shown(planned.plan)
    if args.out:
        write_plan(Path(args.out), plan, request)
        screen.say(f"plan {plan.plan_id} written to {args.out}")
    if args.json:
        document = _document(plan, layouts_of(inventory, request, planned), _spares(inventory))
        screen.json({**document, "advisories": advisories_json(_stacks(plan))})
    elif args.show:
        _show_parts(args.show, plan, args.node, screen)
    else:
        show_plan(plan, screen, sources=args.sources)
        _show_spares(_spares(inventory), plan, screen)
        _show_speeds(plan, layouts_of(inventory, request, planned), screen)
    return 0


def _stacks(plan: Plan) -> list[Stack]:
    return [stack for gang in plan.gangs if (stack := named_stack(gang.stack)) is not None]


def _spares(inventory: Inventory) -> dict[str, list[str]]:
    """Names of the idle spares, by gang."""
    return {gang.name: [node.name for node in gang.spares] for gang in inventory.gangs}


def _show_spares(spares: Mapping[str, Sequence[str]], plan: Plan, screen: Screen) -> None:
    for gang in plan.gangs:
        for name in spares.get(gang.name, ()):
            screen.out.print(printable(f"spare: {name} replaces a node that is left out of {gang.name}"))


def _document(
    plan: Plan, fits: Mapping[str, tuple[LayoutFit, ...]], spares: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    document = plan_json(plan)
    for gang in document["gangs"]:
        gang["spares"] = list(spares.get(gang["name"], ()))
        gang["layouts"] = layouts_json(fits.get(gang["name"], ()))
    return document


def _show_speeds(plan: Plan, fits: Mapping[str, tuple[LayoutFit, ...]], screen: Screen) -> None:
    for gang in plan.gangs:
        fit = chosen(fits.get(gang.name, ()), gang)
        if fit is not None and fit.speeds is not None:
            screen.out.print(printable(f"{gang.name} at {fit.degrees}: {words(fit.speeds)}"))
        elif fit is not None:
            screen.out.print(printable(f"{gang.name} at {fit.degrees}: speed not calculated: {fit.unsaid}"))
        if len(fits.get(gang.name, ())) > 1:
            screen.out.print(
                printable(
                    f"layouts that {gang.name} can have, calculated (--layout NAME, or --tp, --pp, --ep, --attn-dp):"
                )
            )
            for each in fits[gang.name]:
                screen.out.print(printable(f"  {'*' if each is fit else ' '} {fit_words(each)}"))
        if measured := measured_words(gang.model):
            screen.out.print(printable(measured))


def _show_diff(plan: Plan, found: Sequence[GangDiff], screen: Screen) -> None:
    if screen.as_json:
        screen.json(diff_json(plan, found))
        return
    for gang in found:
        for line in diff_lines(gang, plan.plan_id):
            screen.out.print(printable(line))


def diff_lines(gang: GangDiff, plan_id: str) -> Iterator[str]:
    """One gang's differences as text."""
    if not gang.running:
        yield f"gang {gang.name}: never started; `up` would start plan {plan_id}"
        return
    there = "ran last" if gang.state in _ENDED else "runs"
    yield f"gang {gang.name}: plan {gang.running} {there} ({gang.state}); this is plan {plan_id}"
    for (name, was, will), nodes in by_change(gang.changes).items():
        yield f"  {nodes}: {name}: {side(was)} -> {side(will)}"
    if not gang.changes:
        yield "  no changes"
    elif gang.state in _ENDED:
        yield "  `up` starts the gang with these changes"
    else:
        yield "  needs a restart of the gang. `up` restarts one gang at a time behind a router;"
        yield "  without another gang to take the requests, `up` needs --replace (downtime)"


_ENDED = ("absent", "stopped", "failed")


def show_plan(plan: Plan, screen: Screen, *, sources: bool = False) -> None:
    """The plan for a human: each gang's layout, memory, nodes and settings, then what is worth knowing."""
    plan = shown(plan)
    for gang in plan.gangs:
        _summary(gang, screen)
        screen.out.print(_nodes(gang))
        screen.out.print(_settings(gang, sources=sources))
    for finding in plan.findings:
        _finding(finding, screen)
    say_advisories(_stacks(plan), screen)
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
        gid = node.network.gid_index
        cells = (
            str(node.node_rank),
            node.name,
            node.address,
            _span(node.tp_ranks),
            node.network.interface,
            node.network.hca.lstrip("="),
            "" if gid is None else str(gid),
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
    return {**dict(node.env), **{flag: " ".join(values) for flag, *values in node.flags}}


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


def _show_ports(plan: Plan, screen: Screen) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("node", "address", "", "port", "what", "for", "authenticates by"):
        table.add_column(column, overflow="fold")
    for gang in plan.gangs:
        for use in port_uses(gang):
            row = (use.node, use.address, use.protocol, use.port, use.purpose, use.who, use.authenticates)
            table.add_row(*map(printable, row))
    screen.out.print(table)
    screen.out.print(
        "Ports for the gang's nodes must be reachable only from them; --show nftables prints rules that do that."
    )


def _show_parts(what: str, plan: Plan, names: Sequence[str], screen: Screen) -> None:
    """The leader's where no node is named; of several each below its name."""
    if what == "ports":
        _show_ports(plan, screen)
        return
    for node in [_node(plan, name) for name in names] or [plan.gangs[0].nodes[0]]:
        if len(names) > 1:
            screen.out.out(printable(f"# {node.name}"), highlight=False)
        _show(what, node, plan, screen)


def _show(what: str, node: NodePlan, plan: Plan, screen: Screen) -> None:
    import shlex

    if what == "script":
        text = launch_scripts(plan)[node.name]
    elif what == "unit":
        text = unit(node)
    elif what == "nftables":
        text = nftables(next(gang for gang in plan.gangs if gang.name == node.gang), node)
    elif what == "env":
        text = _lines(f"{name}={shlex.quote(value)}" for name, value in node.env)
    else:
        text = shlex.join(node.argv) + "\n"
    screen.out.out(printable(text), end="", highlight=False)


def _lines(words: Iterable[str]) -> str:
    return "".join(f"{word}\n" for word in words)


def _node(plan: Plan, name: str) -> NodePlan:
    nodes = [node for gang in plan.gangs for node in gang.nodes]
    found = next((node for node in nodes if node.name == name), None)
    if found is None:
        raise no_such("node", name, [node.name for node in nodes], where="--node")
    return found


def _span(ranks: tuple[int, ...]) -> str:
    if len(ranks) > 1 and ranks == tuple(range(ranks[0], ranks[0] + len(ranks))):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))
