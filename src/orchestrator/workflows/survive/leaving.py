"""Before a gang starts without some of its nodes: nobody is sent to an address that is no longer served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from orchestrator.model.errors import DeployError
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.model.plan import Plan
from orchestrator.protocol.staging import StagingRequest
from orchestrator.protocol.verbs import GangRequest, StagedAnswer
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.session import Session
from orchestrator.workflows.asking import ask_staged
from orchestrator.workflows.gang.replay import staged_request
from orchestrator.workflows.gang.up import Watcher
from orchestrator.workflows.router.routing import Router, say_failures
from orchestrator.workflows.status.reports import where


@dataclass(frozen=True, slots=True, kw_only=True)
class Was:
    """Who led a gang in its newest run, and where the nodes that leave it served: (address, port)."""

    gang: str
    leader: str
    served: tuple[tuple[str, int], ...]


def newest_run(fleet: Fleet, gang: GangSpec, leaving: Sequence[str]) -> Was | None:
    """What the nodes that stay know of the newest run; None where it had none of the nodes that leave."""

    def one(session: Session) -> StagedAnswer:
        return ask_staged(session, GangRequest(**where(session.spec, gang.name)))

    answers = fleet.on_every(one, only=[node.name for node in gang.nodes])
    for node in gang.nodes:
        if node.name not in answers.values:
            continue
        try:
            request = staged_request(node, gang.name, answers.values[node.name])
        except DeployError:
            continue
        if set(request.members) & set(leaving):
            return _was(gang, request, leaving)
    return None


def _was(gang: GangSpec, request: StagingRequest, leaving: Sequence[str]) -> Was:
    port = gang.leader.ports.http
    served = tuple((address, port) for address, name in request.addresses.items() if name in leaving)
    return Was(gang=gang.name, leader=request.leader_name, served=served)


def leave(inventory: Inventory, fleet: Fleet, plan: Plan, leaving: Sequence[str], watcher: Watcher) -> None:
    """Take the addresses of these nodes out of the router, and say where each gang that they led is served now.

    inventory: without these nodes. What the router can't be told is only said: the gang serves without it.
    """
    chosen = {gang.name: gang for gang in plan.gangs}
    found = [newest_run(fleet, gang, leaving) for gang in inventory.gangs if gang.name in chosen]
    for was in (one for one in found if one is not None):
        if inventory.router is not None:
            _take_out(inventory, was, watcher)
        if was.leader in leaving:
            now = chosen[was.gang]
            told = "" if inventory.router is not None else "; no router: tell your clients"
            watcher.step(
                was.gang,
                f"{now.nodes[0].name} leads it instead of {was.leader}; its address is now {now.service_url}{told}",
            )


def _take_out(inventory: Inventory, was: Was, watcher: Watcher) -> None:
    assert inventory.router is not None
    try:
        with Router(inventory.router) as router:
            if not router.view().serves:
                return
            for worker in router.workers():
                at = urlsplit(worker.url)
                if (at.hostname, at.port) in was.served:
                    watcher.step(was.gang, f"removing {worker.url} from the router")
                    router.take_out(worker.url)
    except DeployError as failure:
        say_failures({was.gang: failure}, watcher)
