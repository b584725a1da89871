"""`--dry-run` of `restart`, `rollback` and `down`: what each would do to each gang, by what its nodes say. Changes
nothing and takes no lock; what the verb itself would refuse at once is refused in the same words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.gang.downtime import expected_downtime
from orchestrator.gang.steps import raising
from orchestrator.gang.steps.checks import refuse_starts
from orchestrator.gang.steps.replay import staged_plan
from orchestrator.gang.steps.rollback import previous_plans
from orchestrator.gang.steps.status.reports import as_they_run, refuse_elsewhere, see
from orchestrator.gang.steps.status.unfinished import interrupted
from orchestrator.gang.view import GangView
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.remote.fleet import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRehearsal:
    """What would be done to one gang, as text; then: the plan that it would run afterwards, '' for none."""

    gang: str
    state: str
    plan_id: str
    then: str
    what: str


def would_restart(
    inventory: Inventory,
    gangs: Sequence[str],
    watcher: raising.Watcher,
    *,
    now: bool,
    one_by_one: bool,
    accept: Sequence[str] = (),
) -> tuple[GangRehearsal, ...]:
    """Raises Unreachable, InputError where there is no plan to start again, and what the checks of the start refuse."""
    specs = chosen_gangs(inventory, gangs)
    with Fleet([node for gang in specs for node in gang.nodes]) as fleet:
        specs = as_they_run(fleet, specs)
        views = see(fleet, specs)
        raising.everybody_answers(views)
        plans = [staged_plan(fleet, gang) for gang in specs]
        refuse_starts(fleet, plans, watcher, accept=accept)
    how = "would be restarted, one gang after the other" if one_by_one and len(specs) > 1 else "would be restarted"
    return tuple(
        would(view, plan.plan_id, f"{how}; {expected_downtime(view, 0.0 if now else plan.drain_s).words}")
        for view, plan in zip(views, plans, strict=True)
    )


def would_resume(inventory: Inventory, gangs: Sequence[str]) -> tuple[GangRehearsal, ...]:
    """Of the gangs on which a command was interrupted. Raises Unreachable."""
    specs = chosen_gangs(inventory, gangs)
    with Fleet([node for gang in specs for node in gang.nodes]) as fleet:
        begun = {one.gang: one for one in interrupted(fleet, specs)}
        views = see(fleet, [gang for gang in specs if gang.name in begun])
        raising.everybody_answers(views)
    return tuple(
        would(
            view,
            view.plan_id,
            f"the {begun[view.name].what.value} that {begun[view.name].who}@{begun[view.name].host} began would be "
            + ("finished" if begun[view.name].turning else "continued with this gang"),
        )
        for view in views
    )


def would_roll_back(
    inventory: Inventory, gangs: Sequence[str], watcher: raising.Watcher, *, accept: Sequence[str] = ()
) -> tuple[GangRehearsal, ...]:
    """Raises Unreachable, InputError where no other plan is kept, and what the checks of the start refuse."""
    specs = chosen_gangs(inventory, gangs)
    with Fleet(inventory.nodes) as fleet:
        views = see(fleet, specs)
        raising.everybody_answers(views)
        backs = previous_plans(inventory, fleet, specs)
        refuse_starts(fleet, [back.before for back in backs], watcher, accept=accept)
    return tuple(
        would(
            view,
            back.before.plan_id,
            f"would return from plan {back.now.plan_id} to plan {back.before.plan_id} ({back.before.model}); "
            + expected_downtime(view, back.now.drain_s).words,
        )
        for view, back in zip(views, backs, strict=True)
    )


def would_stop(inventory: Inventory, gangs: Sequence[str], *, now: bool) -> tuple[GangRehearsal, ...]:
    """Nodes that do not answer are named; they hold nothing up, as they do not hold `down` up."""
    return would_stop_of(chosen_gangs(inventory, gangs), now=now)


def would_stop_of(specs: Sequence[GangSpec], *, now: bool) -> tuple[GangRehearsal, ...]:
    """The same of these gangs, of the router's too."""
    with Fleet([node for gang in specs for node in gang.nodes]) as fleet:
        views = see(fleet, specs)
        refuse_elsewhere(views)
    return tuple(would(view, "", _stopping(spec, view, now)) for spec, view in zip(specs, views, strict=True))


def _stopping(spec: GangSpec, view: GangView, now: bool) -> str:
    lost = {node.name for node in view.unreachable}
    silent = f"; {', '.join(sorted(lost))} can't be reached" if lost else ""
    if not view.running:
        return f"nothing is running{silent}"
    asked = ", ".join(node.name for node in spec.nodes if node.name not in lost)
    return f"would be stopped on {asked}, {'at once' if now else 'once its running requests have ended'}{silent}"


def would(view: GangView, then: str, what: str) -> GangRehearsal:
    """Of one gang as it is. then: the plan that it would run afterwards, '' for none."""
    return GangRehearsal(gang=view.name, state=view.state.value, plan_id=view.plan_id, then=then, what=what)
