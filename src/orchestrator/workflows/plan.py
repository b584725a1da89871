"""`plan`: look at the nodes, build their topologies, compute what would run. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from orchestrator.loading.profiles import load_profile
from orchestrator.loading.stacks import load_stack
from orchestrator.loading.templates import template
from orchestrator.model.errors import InputError
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.model.plan import Plan
from orchestrator.model.profile import ModelProfile
from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import Topology
from orchestrator.planning.build import build_plan
from orchestrator.planning.options import HostFacts, PlanOptions
from orchestrator.remote.fleet import Fleet
from orchestrator.rendering import launch_script
from orchestrator.topology.build import build
from orchestrator.workflows.look import look

SEEN_TO_WORK = "sglang-0.4.4-l40s"
"""The stack that ran both of the articles' models on SM89."""

_TODAY = "sglang-0.5.23"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What an operator asks for. None and () let inventory, profile and facts decide."""

    model: str
    stack: str | None = None
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    extra_args: tuple[str, ...] = ()
    gangs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan with what it was made from, by node name."""

    plan: Plan
    topologies: Mapping[str, Topology]
    snapshots: Mapping[str, Snapshot]


def make_plan(inventory: Inventory, request: PlanRequest, fleet: Fleet) -> Planned:
    """Look at the nodes of the gangs that were asked for, and plan them.

    Raises InputError and FindingsError (see planning.build), and the failure of the first node that can't be read.
    """
    gangs = chosen_gangs(inventory, request.gangs)
    profile = load_profile(request.model)
    stack = load_stack(stack_name(gangs, profile, request.stack))
    snapshots = look(fleet, [node for gang in gangs for node in gang.nodes]).all()
    topologies = {name: build(snapshot) for name, snapshot in snapshots.items()}
    options = PlanOptions(
        tensor_parallel=request.tp,
        pipeline_parallel=request.pp,
        expert_parallel=request.ep,
        extra_args=request.extra_args,
        hosts={name: host_facts(snapshot) for name, snapshot in snapshots.items()},
    )
    plan = build_plan(gangs, profile, stack, topologies, options)
    return Planned(plan=plan, topologies=topologies, snapshots=snapshots)


def plan_inventory(inventory: Inventory, request: PlanRequest) -> Planned:
    """The same over connections of its own."""
    nodes = [node for gang in chosen_gangs(inventory, request.gangs) for node in gang.nodes]
    with Fleet(nodes) as fleet:
        return make_plan(inventory, request, fleet)


def chosen_gangs(inventory: Inventory, names: tuple[str, ...]) -> tuple[GangSpec, ...]:
    """The gangs with these names in the inventory's order; all of them where none is named."""
    known = {gang.name: gang for gang in inventory.gangs}
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1) or list(known)
            raise InputError(
                f"no gang is called {name!r}", where=inventory.path, fix="--gang one of: " + ", ".join(near)
            )
    return tuple(gang for gang in inventory.gangs if not names or gang.name in names)


def stack_name(gangs: tuple[GangSpec, ...], profile: ModelProfile, asked: str | None) -> str:
    """The stack: what was asked for, else the inventory's, else the one that was seen to work with such a model."""
    if asked:
        return asked
    named = {node.stack for gang in gangs for node in gang.nodes}
    if len(named) > 1:
        raise InputError(
            "the nodes name different stacks: " + ", ".join(sorted(str(name or "none") for name in named)),
            where="inventory: l40s_stack",
            fix="give all gangs that are planned together the same l40s_stack, or use --stack or --gang",
        )
    if stack := next(iter(named), None):
        return stack
    return _TODAY if profile.quantisation == "none" else SEEN_TO_WORK


def host_facts(snapshot: Snapshot) -> HostFacts:
    """What a plan needs to know of a node beside its hardware, as far as the probe says it."""
    host = snapshot.host
    user, home, count = host.get("user"), host.get("home"), host.get("cpu_count")
    return HostFacts(
        user=user if isinstance(user, str) and user else None,
        home=home if isinstance(home, str) and home.startswith("/") else None,
        cpu_count=count if isinstance(count, int) and count > 0 else None,
    )


def launch_scripts(plan: Plan) -> dict[str, str]:
    """The launch script of every node, by node name: what the agent starts, and what a human can read and run."""
    text = template("launch.sh.j2")
    return {node.name: launch_script(node, gang, plan.plan_id, text) for gang in plan.gangs for node in gang.nodes}
