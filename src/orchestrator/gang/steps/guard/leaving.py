"""Before a gang starts where others lead it: nobody is sent to an address that is no longer served."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from orchestrator.gang.steps.replay import newest_run
from orchestrator.gang.steps.router.routing import say_failures, serving_router
from orchestrator.gang.steps.watcher import Watcher
from orchestrator.model.errors import DeployError
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.model.plan import Plan
from orchestrator.protocol.staging import StagingRequest
from orchestrator.remote.fleet import Fleet


def leave(
    inventory: Inventory,
    fleet: Fleet,
    plan: Plan,
    leaving: Collection[str],
    watcher: Watcher,
    *,
    rising: Collection[str] = (),
) -> None:
    """Take the addresses of these nodes out of the router, and say where each gang that another node leads now is
    served.

    inventory: without these nodes. rising: gangs that serve nowhere now, so that the address of the leader that they
    had is out as well; one that serves is taken out in its turn. What the router can't be told is only said: the gang
    serves without it.
    """
    chosen = {gang.name: gang for gang in plan.gangs}
    for gang in (one for one in inventory.gangs if one.name in chosen):
        was = newest_run(fleet, gang)
        if was is None:
            continue
        now = chosen[gang.name]
        leads = now.nodes[0].name
        moved = was.leader_name != leads
        gone = {name for name in was.members if name in leaving}
        gone |= {was.leader_name} if moved and gang.name in rising else set()
        if gone:
            _take_out(inventory, gang, was, gone, watcher)
        if moved:
            told = "" if inventory.router is not None else "; no router: tell your clients"
            watcher.step(
                gang.name, f"{leads} leads it instead of {was.leader_name}; its address is now {now.service_url}{told}"
            )


def _take_out(
    inventory: Inventory, gang: GangSpec, was: StagingRequest, gone: Collection[str], watcher: Watcher
) -> None:
    served = {(address, gang.leader.ports.http) for address, name in was.addresses.items() if name in gone}
    try:
        with serving_router(inventory.router) as router:
            if router is None:
                return
            for worker in router.workers():
                at = urlsplit(worker.url)
                if (at.hostname, at.port) in served:
                    watcher.step(gang.name, f"removing {worker.url} from the router")
                    router.take_out(worker.url)
    except DeployError as failure:
        say_failures({gang.name: failure}, watcher)
