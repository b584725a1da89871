"""What `plan` and `up` have in common: what is asked of a plan, and the plan for a human."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import dropwhile, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.options import add_gang_option, add_layout, count, open_inventory
from orchestrator.cli.screen import Screen, printable
from orchestrator.engines.registry import engine_of
from orchestrator.loading.profiles import load_profile, load_stack, profile_names
from orchestrator.model.chosen import chosen_gangs, no_such
from orchestrator.model.finding import Finding
from orchestrator.model.inventory import Inventory
from orchestrator.model.per_node import collected
from orchestrator.model.plan import GangPlan, Plan
from orchestrator.model.profile import Stack
from orchestrator.model.secret_text import shown
from orchestrator.planning import drafts
from orchestrator.planning.steps.load_choice import choice_for
from orchestrator.planning.steps.look import named_stack
from orchestrator.planning.steps.plan import PlanRequest, chosen_stack, read_request
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.severity import Severity
from orchestrator.protocol.staging import NodePlan

if TYPE_CHECKING:
    from rich.table import Table


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """What `plan` and `up` have in common: the model and what may be pinned."""
    parser.add_argument("--model", metavar="NAME", help="a profile's name or .yml file (`models` lists them)")
    parser.add_argument(
        "--plan", metavar="FILE", help="use the plan that `plan --out` wrote, if it is still valid, instead of --model"
    )
    parser.add_argument("--stack", metavar="NAME", help="a stack's name or .yml file (default: l40s_stack)")
    _add_degrees(parser)
    add_layout(parser)
    parser.add_argument(
        "--for",
        dest="requests",
        type=count,
        metavar="N",
        help="the layout and settings that are the fastest with N requests at once: measured by `sweep`, else"
        " calculated, with CUDA graphs for N",
    )
    parser.add_argument(
        "--draft",
        choices=drafts.CHOICES,
        help="speculative decoding by the checkpoint's own prediction layer: mtp drafts one token a step, mtp3 three"
        " (default: off)",
    )
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
    parser.add_argument(
        "engine_args",
        nargs="*",
        metavar="NAME -- FLAGS",
        help="NAME: a gang, as --gang NAME, else a model, as --model NAME; after --: extra engine flags",
    )


def _add_degrees(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tp", type=count, metavar="N", help="tensor parallel degree")
    parser.add_argument("--pp", type=count, metavar="N", help="pipeline parallel degree")
    parser.add_argument("--ep", type=count, metavar="N", help="expert parallel degree")
    parser.add_argument(
        "--attn-dp",
        type=count,
        metavar="N",
        help="attention data parallel degree: groups of ranks, each with its own requests",
    )


def take_names(args: argparse.Namespace, recorded: Inventory | None = None) -> None:
    """Read what stands before the engine's flags as --gang, where the inventory has a gang of that name, else as
    --model. Raises InputError for a name of neither."""
    words = args.engine_args
    args.engine_args = list(dropwhile(lambda word: not word.startswith("-"), words))
    names = words[: len(words) - len(args.engine_args)]
    if not names:
        return
    gangs = {gang.name for gang in (recorded or open_inventory(args, None)).gangs}
    models = profile_names()
    for name in names:
        if not gangs.isdisjoint((name, re.sub(r"-\d+$", "", name))):  # or one of its replicas
            args.gang.append(name)
        elif args.model is None and not args.plan and (name in models or name.endswith((".yml", ".yaml"))):
            args.model = name
        elif name in models:
            beside = f"--plan {args.plan}" if args.plan else args.model
            raise InputError(f"{name} was named beside {beside}", where="command line", fix="name one model")
        else:
            raise no_such(
                "gang or model", name, [*sorted(gangs), *models], where="command line", lister="l40s-deploy models"
            )


def asks(args: argparse.Namespace) -> bool:
    """Whether these options say anything of a plan."""
    return bool(args.plan or _wishes(args))


def _wishes(args: argparse.Namespace) -> bool:
    degrees = (args.tp, args.pp, args.ep, args.attn_dp, args.layout)
    wishes = (args.model, args.stack, args.requests, *degrees, args.replicas, args.without, args.draft)
    return any((*wishes, args.engine_args))


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


def for_its_load(args: argparse.Namespace, asked: PlanRequest, inventory: Inventory, screen: Screen) -> PlanRequest:
    """With --for, the request for the best plan for that load, and why on stderr; else the same."""
    if args.requests is None:
        return asked
    choice = choice_for(chosen_gangs(inventory, asked.gangs), asked, args.requests)
    screen.say(f"for {args.requests} requests at once: {choice.why}")
    return choice.request


def with_its_draft(args: argparse.Namespace, asked: PlanRequest, inventory: Inventory) -> PlanRequest:
    """With --draft, the request with the engine's flags for it; what stands after -- outweighs them."""
    if args.draft in (None, drafts.OFF):
        return asked
    profile, gangs = load_profile(asked.model), chosen_gangs(inventory, asked.gangs)
    engine = engine_of(load_stack(chosen_stack(gangs, profile, asked.stack).name))
    return replace(asked, extra_args=(*drafts.draft_words(engine, profile, args.draft), *asked.extra_args))


def stacks_of_plan(plan: Plan) -> list[Stack]:
    return [stack for gang in plan.gangs if (stack := named_stack(gang.stack)) is not None]


def show_plan(plan: Plan, screen: Screen, *, sources: bool = False) -> None:
    """The plan for a human: each gang's layout, memory, nodes and settings, then what is worth knowing."""
    plan = shown(plan)
    for gangs in _alike(plan.gangs):
        first, many = gangs[0], "gangs" if len(gangs) > 1 else "gang"
        screen.show(
            f"{many} {', '.join(gang.name for gang in gangs)}: {first.model} by {first.stack}",
            f"layout: {first.layout} on {first.layout.nnodes} x {first.layout.gpus_per_node}",
            *first.memory.explanation,
        )
        titles = ("rank", "node", "address", "TP ranks", "interface", "RDMA ports", "GID")
        for gang in gangs:
            named = f"{gang.name}: " if len(gangs) > 1 else ""
            screen.show(f"{named}rendezvous {gang.dist_init}, service {gang.service_url}")
            screen.show(table(titles, map(_cells, gang.nodes)))
        screen.show(_settings([node for gang in gangs for node in gang.nodes], sources=sources))
    for finding in plan.findings:
        _finding(finding, screen)
    say_advisories(stacks_of_plan(plan), screen)
    screen.out.print(f"plan {plan.plan_id}, facts {plan.facts_digest}; nothing was changed")


def _alike(gangs: Sequence[GangPlan]) -> list[list[GangPlan]]:
    """Gangs that run the same in the same way, together."""
    groups = collected(((gang.model, gang.stack, gang.layout, gang.memory.explanation), gang) for gang in gangs)
    return [list(alike) for alike in groups.values()]


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Columns whose texts go on below where they are too long."""
    from rich.table import Column, Table

    made = Table(*(Column(title, overflow="fold") for title in titles), box=None, pad_edge=False, header_style="bold")
    for row in rows:
        made.add_row(*map(printable, row))
    return made


def _cells(node: NodePlan) -> tuple[str, ...]:
    network = node.network
    gid = "" if network.gid_index is None else str(network.gid_index)
    ports = network.hca.lstrip("=")
    return str(node.node_rank), node.name, network.address, _span(node.tp_ranks), network.interface, ports, gid


def _flag_texts(node: NodePlan) -> dict[str, str]:
    return {flag: " ".join(values) for flag, *values in node.flags}


def _settings(nodes: Sequence[NodePlan], *, sources: bool) -> Table:
    """Every variable and flag once where all nodes agree, else node by node."""
    by_node = {node.name: {**node.env, **_flag_texts(node)} for node in nodes}
    origins = {node.name: node.sources for node in nodes}
    rows = []
    for name in dict.fromkeys(name for values in by_node.values() for name in values):
        by_value = collected((values[name], node) for node, values in by_node.items() if name in values)
        for value, having in by_value.items():
            where = "all" if len(having) == len(nodes) else ", ".join(having)
            source = origins[having[0]].get(name, "")
            rows.append((name, value, where, source) if sources else (name, value, where))
    titles = ("setting", "value", "node")
    return table((*titles, "source") if sources else titles, rows)


def _finding(finding: Finding, screen: Screen) -> None:
    style = {Severity.STOP: "bold red", Severity.SLOW: "yellow"}.get(finding.severity, "dim")
    place = f"{finding.node}: " if finding.node else ""
    screen.out.print(f"{finding.severity.value}: {finding.id}: {printable(place + finding.title)}", style=style)
    for line in (*finding.evidence, finding.effect, finding.fix and f"fix: {finding.fix}"):
        if line:
            screen.out.print(f"  {printable(line)}")


def _span(ranks: tuple[int, ...]) -> str:
    """'0-3 0-3': ranks in a row as one, as `status` has them."""
    rows = groupby(enumerate(ranks), lambda placed: placed[1] - placed[0])
    ends = [(row[0], row[-1]) for row in ([rank for _, rank in placed] for _, placed in rows)]
    return " ".join(f"{first}-{last}" if last > first else str(first) for first, last in ends)


def known(stacks: Iterable[Stack]) -> tuple[Stack, ...]:
    """Each stack once, those that have any."""
    return tuple({stack.name: stack for stack in stacks if stack.advisories}.values())


def say_advisories(stacks: Sequence[Stack], screen: Screen) -> None:
    """One line a stack; docs/security.md has what each needs."""
    for stack in known(stacks):
        ids = ", ".join(advisory.id for advisory in stack.advisories)
        screen.out.print(
            printable(
                f"note: {stack.name} has {len(stack.advisories)} published vulnerabilities, looked up on "
                f"{stack.looked_up}: {ids}; see `doctor --json` and docs/security.md for when they matter"
            ),
            style="dim",
        )


def advisories_json(stacks: Iterable[Stack]) -> list[dict[str, Any]]:
    """[{stack, looked_up, known: [{id, published, package, what, when, source}]}]."""
    return [
        {
            "stack": stack.name,
            "looked_up": stack.looked_up,
            "known": [
                {key: getattr(advisory, key) for key in ("id", "published", "package", "what", "when", "source")}
                for advisory in stack.advisories
            ],
        }
        for stack in known(stacks)
    ]
