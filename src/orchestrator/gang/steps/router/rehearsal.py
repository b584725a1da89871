"""`--dry-run` of the router's verbs: what would be started, stopped and added, by what is there. Changes nothing."""

from __future__ import annotations

from orchestrator.gang.steps.raising import everybody_answers
from orchestrator.gang.steps.router.host import router_gang
from orchestrator.gang.steps.router.routing import Router, plan_wanted, wanted_router
from orchestrator.gang.steps.status.reports import see
from orchestrator.model.inventory import Inventory
from orchestrator.planning.steps.changes import GangRehearsal, would, would_stop_of
from orchestrator.remote.fleet import Fleet


def would_start_router(inventory: Inventory) -> tuple[GangRehearsal, ...]:
    """Raises InputError where the inventory has no router, and Unreachable."""
    with Router(wanted_router(inventory)) as router, Fleet(inventory.nodes) as fleet:
        state = router.state()
        everybody_answers([state.view])
        gangs = see(fleet, inventory.gangs)
        running = state.view.running
        then = state.view.plan_id if running else plan_wanted(router, inventory, gangs)
    behind = {worker.url for worker in state.workers}
    added = [view.name for view in gangs if view.serves and view.service_url not in behind]
    joining = f"{', '.join(added)} would be added" if added else "no gang would be added"
    what = "is running and would be left unchanged" if running else "would be started"
    return (would(state.view, then, f"{what}; {joining}"),)


def would_stop_router(inventory: Inventory) -> tuple[GangRehearsal, ...]:
    """Raises InputError where the inventory has no router."""
    return would_stop_of([router_gang(wanted_router(inventory))], now=False)
