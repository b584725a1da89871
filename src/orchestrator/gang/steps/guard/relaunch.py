"""What was staged is started again with the facts of now: interface, RDMA ports and GID index are resolved each time.

Inventory, profile and flags stay as they were staged, and so does the plan's id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from orchestrator.doctor.steps.look import look
from orchestrator.gang.steps.replay import OfNow
from orchestrator.gang.steps.watcher import Watcher
from orchestrator.model.inventory import GangSpec, NodeSpec
from orchestrator.model.topology import NETWORKS, Topology
from orchestrator.planning.environment import moved_variables
from orchestrator.planning.facts_of_now import moved
from orchestrator.protocol.staging import StagingRequest, launch_digest
from orchestrator.remote.fleet import Fleet
from orchestrator.rendering import exported_anew
from orchestrator.topology.build import build
from orchestrator.topology.machine import Machine
from orchestrator.topology.network import networks_met

Requests = Mapping[str, StagingRequest]


def facts_of_now(fleet: Fleet, watcher: Watcher) -> OfNow:
    """What `Staged.rising` does to its requests at every start."""
    return lambda gang, requests: of_now(fleet, gang, requests, watcher)


def of_now(fleet: Fleet, gang: GangSpec, requests: Requests, watcher: Watcher) -> Requests:
    """These requests as they are to be staged now; what moved is said, a line a node. A node that can't be looked at
    is left as it was: staging finds out why."""
    looked = look(fleet, list(gang.nodes)).values
    known = {name: build(snapshot) for name, snapshot in looked.items()}
    resolved = {}
    for node in gang.nodes:
        request, words = requests[node.name], ""
        if node.name in known:
            request, words = resolved_on(node, request, known)
        if words:
            watcher.step(gang.name, f"{words} on {node.name}")
        resolved[node.name] = request
    return resolved


def resolved_on(node: NodeSpec, request: StagingRequest, known: Mapping[str, Topology]) -> tuple[StagingRequest, str]:
    """The request with what moved on this node, and that in words; ('' and as it was where nothing did, where the
    networks of some node were not read, or where its launch script is not one of ours). known: the gang's nodes as they
    are now, this one among them."""
    found = moved(request, Machine(node, known[node.name]), networks_met(known.values()))
    if found.network == request.network or any(one.lacks(*NETWORKS) for one in known.values()):
        return request, ""
    now = moved_variables(request.network, found.network)
    script = exported_anew(request.launch_script, request.env, now)
    if script is None:
        return request, ""
    return (
        replace(
            request,
            network=found.network,
            env={name: value for name, value in {**request.env, **now}.items() if value is not None},
            launch_script=script,
            launch_sha256=launch_digest(script),
        ),
        found.words,
    )
