"""`l40s-deploy plan`: what would run where, and why."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.cli.options import add_nodes, add_usual, open_inventory
from orchestrator.cli.screen import Screen, printable
from orchestrator.doctor.commands.examples import add_example, example_folder, show_examples
from orchestrator.doctor.steps.recordings import given, recorded_inventory
from orchestrator.gang.steps.asked_before import asked_before
from orchestrator.gang.steps.changes import diff_json, plan_and_diff
from orchestrator.gang.steps.operation import Operation, connected
from orchestrator.gang.steps.standing import as_replicas
from orchestrator.model.chosen import chosen, without
from orchestrator.model.inventory import Inventory
from orchestrator.model.per_node import collected
from orchestrator.model.plan import GangPlan, Plan
from orchestrator.model.secret_text import shown
from orchestrator.model.snapshot import Snapshot
from orchestrator.planning.admission import limit_at_start, router_words, routers_limit
from orchestrator.planning.commands.plan_options import (
    add_plan_options,
    advisories_json,
    asks,
    for_its_load,
    request_of,
    show_plan,
    stacks_of_plan,
    table,
    take_names,
    with_its_draft,
)
from orchestrator.planning.offers import LayoutFit
from orchestrator.planning.plan_file import GangDiff, by_change, plan_json, side
from orchestrator.planning.ports import nftables, port_uses
from orchestrator.planning.roofline import words
from orchestrator.planning.steps.exports import unit
from orchestrator.planning.steps.models import fit_words, here_words, layouts_json, layouts_of
from orchestrator.planning.steps.plan import (
    PlanRequest,
    PlanResult,
    launch_scripts,
    make_plan,
    plan_recorded,
    write_plan,
)
from orchestrator.protocol.errors import Exit, InputError
from orchestrator.protocol.planned import Layout
from orchestrator.protocol.staging import NodePlan

_SHOWN = ("env", "argv", "script", "unit", "ports", "nftables")


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_usual(
        parser,
        "l40s-deploy plan --model DeepSeek-V3-0324-Block64x64 --sources",
        "l40s-deploy plan --model DeepSeek-V3-0324-Block64x64 --stack sglang-0.5.23 --without l40s-2",
        "l40s-deploy plan --model DeepSeek-V3-0324-Block64x64 --show script --node l40s-2",
        "l40s-deploy plan --model DeepSeek-V3-0324-Block64x64 --show nftables --node l40s-2 >l40s.nft",
        "l40s-deploy plan --model DeepSeek-V3-0324-Block64x64 --for 128     # the fastest with so many requests",
        "l40s-deploy plan --model MiniMax-M2 --replicas      # one engine per node",
        "l40s-deploy plan --diff                             # would the running gangs be planned otherwise now",
        "l40s-deploy plan --model DeepSeek-V3-0324-Block64x64 --example right    # without an inventory or a network",
        "l40s-deploy plan --model DeepSeek-V3-0324-Block64x64 --out plan.json && l40s-deploy up --plan plan.json",
    )
    add_plan_options(parser)
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument(
        "--show", choices=_SHOWN, help="show one part: a node's environment, command, ..., or all nodes' ports"
    )
    ways.add_argument(
        "--diff",
        action="store_true",
        help="show what would change in the running gangs, and whether that needs a restart; without a model: as they"
        " were asked for when they were started",
    )
    parser.add_argument(
        "--exit-code", action="store_true", help="with --diff: 7 where a gang runs otherwise, or never ran"
    )
    add_nodes(parser, "node for --show (repeatable; default: the leader)")
    parser.add_argument("--sources", action="store_true", help="show where every value comes from")
    add_example(parser)
    parser.add_argument("--out", metavar="FILE", help="also save the plan to a file for `up --plan`")


def _stack_json(planned: PlanResult) -> dict[str, str] | None:
    """None where it was not for us to choose."""
    return {"name": planned.stack.name, "why": planned.why} if planned.why else None


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Make the plan and show it as requested."""
    if args.example == "":
        show_examples("plan --model DeepSeek-V3-0324-Block64x64", screen)
        return 0
    if args.exit_code and not args.diff:
        raise InputError("tells whether something differs", where="--exit-code", fix="give it with --diff")
    seen = _example(args) if args.example else None
    if args.diff:
        return _diff(args, screen)
    recorded = None if seen is None else recorded_inventory(seen)
    take_names(args, recorded)
    typed = request_of(args)
    with connected(recorded or open_inventory(args, screen), asks_lost=False) as nodes:
        request, operation = _on_its_nodes(args, typed, nodes, screen)
        if seen is None:
            planned = make_plan(operation.inventory, request, operation.fleet)
        else:
            planned = plan_recorded(operation.inventory, request, seen)
    _show(args, planned, request, operation.inventory, screen)
    return Exit.DONE


def _diff(args: argparse.Namespace, screen: Screen) -> int:
    """Show what would change; 7 where --exit-code asks for it and something does."""
    take_names(args)
    typed = request_of(args) if args.model or args.plan else None
    with connected(open_inventory(args, screen), asks_lost=False) as nodes:
        there = nodes if typed else nodes.as_standing()
        request, operation = _on_its_nodes(args, typed or _of_what_runs(args, there), there, screen)
        plan, diffs = plan_and_diff(operation, request)
    _show_diff(plan, diffs, screen)
    return Exit.DIFFERS if args.exit_code and any(gang.differs for gang in diffs) else Exit.DONE


def _show(
    args: argparse.Namespace, planned: PlanResult, request: PlanRequest, inventory: Inventory, screen: Screen
) -> None:
    plan = shown(planned.plan)
    if planned.why:
        screen.say(printable(f"stack: {planned.stack.name}, {planned.why} (--stack NAME decides otherwise)"))
    if args.out:
        write_plan(Path(args.out), plan, request)
        screen.say(f"plan {plan.plan_id} written to {args.out}")
    if args.json:
        document = _document(plan, layouts_of(inventory, planned), _spares(inventory), inventory)
        document["stack_chosen"] = _stack_json(planned)
        screen.json({**document, "advisories": advisories_json(stacks_of_plan(plan))})
    elif args.show:
        _show_parts(args.show, plan, args.node, screen)
    else:
        show_plan(plan, screen, sources=args.sources)
        for line in _beside(plan, _spares(inventory), layouts_of(inventory, planned), inventory):
            screen.out.print(printable(line))


def _on_its_nodes(
    args: argparse.Namespace, request: PlanRequest, operation: Operation, screen: Screen
) -> tuple[PlanRequest, Operation]:
    """The request as its load and its draft make it, and the nodes and gangs that it is for."""
    inventory = without(operation.inventory, request.without)
    if request.replicas:
        inventory = as_replicas(inventory, request.gangs)
    request = with_its_draft(args, for_its_load(args, request, inventory, screen), inventory)
    return request, operation.on(inventory)


def _of_what_runs(args: argparse.Namespace, operation: Operation) -> PlanRequest:
    """Of a difference without a model: what was asked for when the gangs were started; with other wishes its model."""
    before = asked_before(operation, tuple(args.gang))
    if not asks(args):
        return PlanRequest.of(before, gangs=tuple(args.gang))
    args.model = before.model
    return request_of(args)


def _beside(
    plan: Plan, spares: Mapping[str, Sequence[str]], fits: Mapping[str, tuple[LayoutFit, ...]], inventory: Inventory
) -> Iterator[str]:
    """What else is worth knowing of each gang: its spares, its speed and its other layouts; and of the router."""
    for gang in plan.gangs:
        yield from (
            f"spare: {name} replaces a node that is left out of {gang.name}" for name in spares.get(gang.name, ())
        )
    yield from speed_lines(plan.gangs, fits)
    if inventory.router is not None:
        yield from router_words(inventory.router.max_requests, _advised(plan, inventory))


def _advised(plan: Plan, inventory: Inventory) -> int | None:
    """For the router, by what its gangs run at once; None where the plan is of some of them alone."""
    whole = len(plan.gangs) == len(inventory.gangs)
    return routers_limit([gang.memory.requests for gang in plan.gangs]) if whole else None


def _example(args: argparse.Namespace) -> Mapping[str, Snapshot]:
    folder = example_folder(args.example)
    if args.diff or args.inventory or args.plan:
        raise InputError(
            "is a cluster of its own, in which nothing runs",
            where="--example",
            fix="give it without --diff, --inventory and --plan",
        )
    return given([folder]).snapshots


def _spares(inventory: Inventory) -> dict[str, list[str]]:
    """Names of the idle spares, by gang."""
    return {gang.name: [node.name for node in gang.spares] for gang in inventory.gangs}


def _document(
    plan: Plan, fits: Mapping[str, tuple[LayoutFit, ...]], spares: Mapping[str, Sequence[str]], inventory: Inventory
) -> dict[str, Any]:
    document = plan_json(plan)
    advised = _advised(plan, inventory)
    document["router"] = inventory.router and {
        "max_requests": limit_at_start(inventory.router.max_requests, [advised and advised // 2]),
        "advised_max_requests": advised,
    }
    for gang in document["gangs"]:
        gang["spares"] = list(spares.get(gang["name"], ()))
        gang["layouts"] = layouts_json(fits.get(gang["name"], ()))
    return document


def speed_lines(gangs: Sequence[GangPlan], fits: Mapping[str, Sequence[LayoutFit]]) -> Iterator[str]:
    """How fast gangs should be, by their layouts and by the others that they can have; equal gangs together."""
    told = collected((_speed_words(gang.layout, fits.get(gang.name, ())), gang.name) for gang in gangs)
    for (speed, others), names in told.items():
        named = ", ".join(names)
        if speed:
            yield f"{named} at {speed}"
        if others:
            yield f"layouts that {named} can have, calculated (--layout NAME, or --tp, --pp, --ep, --attn-dp):"
            yield from others


def _speed_words(layout: Layout, fits: Sequence[LayoutFit]) -> tuple[str, tuple[str, ...]]:
    """Of the gang's own layout, '' where it is none of these; and a line for each layout where there is a choice."""
    chosen = next((fit for fit in fits if fit.layout == layout), None)
    speed = ""
    if chosen is not None:
        speeds = words(chosen.speeds) if chosen.speeds else f"speed not calculated: {chosen.unsaid}"
        speed = f"{chosen.layout}: {'; '.join(filter(None, (here_words(chosen), speeds)))}"
    if len(fits) < 2:
        return speed, ()
    return speed, tuple(f"  {'*' if fit is chosen else ' '} {fit_words(fit)}" for fit in fits)


def _show_diff(plan: Plan, diffs: Sequence[GangDiff], screen: Screen) -> None:
    if screen.as_json:
        screen.json(diff_json(plan, diffs))
        return
    for gang in diffs:
        for line in diff_lines(gang, plan.plan_id):
            screen.out.print(printable(line))


def diff_lines(gang: GangDiff, plan_id: str) -> Iterator[str]:
    """One gang's differences as text."""
    if not gang.running:
        yield f"gang {gang.name}: never started; `up` would start plan {plan_id}"
        return
    there = "ran last" if gang.state in _ENDED else "runs"
    yield f"gang {gang.name}: plan {gang.running} {there} ({gang.state}); this is plan {plan_id}"
    if gang.left:
        yield f"  {', '.join(gang.left)}: in the running plan, and not in the inventory any more"
    for (name, was, will), nodes in by_change(gang.changes).items():
        yield f"  {nodes}: {name}: {side(was)} -> {side(will)}"
    if not gang.differs:
        yield "  no changes"
    elif gang.state in _ENDED:
        yield "  `up` starts the gang with these changes"
    else:
        yield "  needs a restart of the gang. `up` restarts one gang at a time behind a router;"
        yield "  without another gang to take the requests, `up` needs --replace (downtime)"


_ENDED = ("absent", "stopped", "failed")


def _show_ports(plan: Plan, screen: Screen) -> None:
    rows = [
        (use.node, use.address, use.protocol, use.port, use.purpose, use.who, use.authenticates)
        for gang in plan.gangs
        for use in port_uses(gang)
    ]
    screen.out.print(table(("node", "address", "", "port", "what", "for", "authenticates by"), rows))
    screen.out.print(
        "Ports for the gang's nodes must be reachable only from them; --show nftables prints rules that do that."
    )


def _show_parts(what: str, plan: Plan, names: Sequence[str], screen: Screen) -> None:
    """The leader's where no node is named; of several each below its name."""
    if what == "ports":
        _show_ports(plan, screen)
        return
    nodes = {node.name: (gang, node) for gang in plan.gangs for node in gang.nodes}
    for gang, node in [chosen(nodes, [name], "--node")[name] for name in names] or [next(iter(nodes.values()))]:
        if len(names) > 1:
            screen.out.out(printable(f"# {node.name}"), highlight=False)
        screen.out.out(printable(_part(what, gang, node, plan)), end="", highlight=False)


def _part(what: str, gang: GangPlan, node: NodePlan, plan: Plan) -> str:
    parts: dict[str, Callable[[], str]] = {
        "script": lambda: launch_scripts(plan)[node.name],
        "unit": lambda: unit(node),
        "nftables": lambda: nftables(gang, node),
        "env": lambda: "".join(f"{name}={shlex.quote(value)}\n" for name, value in node.env.items()),
        "argv": lambda: shlex.join(node.argv) + "\n",
    }
    return parts[what]()
