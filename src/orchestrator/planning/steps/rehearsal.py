"""`--dry-run`: what a verb would do to each gang, by what its nodes say. Changes nothing and takes no lock; what the
verb itself would refuse at once is refused in the same words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.gang.steps.status.reports import refuse_elsewhere, see
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
