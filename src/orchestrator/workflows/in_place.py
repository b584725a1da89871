"""What runs in the place of a gang's engine while it is down: a network test, the tuners (node/in_place/task.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from orchestrator.model.errors import InputError
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.protocol.staging import Ports, StagingRequest, Watch
from orchestrator.remote.fleet import Fleet
from orchestrator.workflows.gang.staging import staging_requests
from orchestrator.workflows.plan.plan import PlanRequest, PlanResult, launch_scripts, make_plan
from orchestrator.workflows.status.reports import see

NO_PORTS = Ports()


def refuse_running(fleet: Fleet, gang: GangSpec, *, why: str, fix: str) -> None:
    """Raises InputError where an engine of the gang runs, and the failure of a node that does not answer."""
    (view,) = see(fleet, [gang])
    for node in view.unreachable:
        if node.error is not None:
            raise node.error
    if view.running:
        raise InputError(f"it is {view.state.value}: {why}", where=f"gang {gang.name}", fix=fix)


def planned_requests(
    inventory: Inventory, fleet: Fleet, gang: GangSpec, asked: PlanRequest, *, run_id: str
) -> tuple[PlanResult, Mapping[str, StagingRequest]]:
    """A plan for one gang, and by node what would be staged for it."""
    planned = make_plan(inventory, asked, fleet)
    plan = planned.plan
    requests = staging_requests(gang, plan.gangs[0], launch_scripts(plan), plan_id=plan.plan_id, run_id=run_id, key="")
    return planned, requests


def in_place_of(engine: StagingRequest, *, ports: Ports = NO_PORTS) -> StagingRequest:
    """The engine's user, rights and environment, without what only an engine needs. ports: that must be free."""
    return replace(engine, secrets=None, canary=None, watch=Watch(), launch_script="", key="", ports=ports)
