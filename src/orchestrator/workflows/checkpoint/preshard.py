"""`checkpoint preshard`: the engine writes each rank's weights once; each node keeps those of its own ranks.

The dump is one start of the gang over a directory that all of its nodes share, since the engine's ranks exchange their
manifests there as files. Then each node copies its own ranks' files out of it: they differ from node to node, so that a
chain of nodes would carry every byte several times, and the directory gives each of them once anyway.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from orchestrator.loading.stacks import load_stack
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.errors import InputError, NodeError
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec
from orchestrator.model.per_node import PerNode
from orchestrator.model.plan import GangPlan, Plan
from orchestrator.planning import per_rank
from orchestrator.planning.layout import world_ranks
from orchestrator.planning.places import presharded_key
from orchestrator.protocol.jobs import RankFilesLine, RankFilesRequest
from orchestrator.remote import node_app
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.session import Session
from orchestrator.workflows.checkpoint.same_roots import same_roots
from orchestrator.workflows.gang.down import DownRequest, down
from orchestrator.workflows.gang.locks import GangLock
from orchestrator.workflows.gang.raising import UpRequest, Watcher
from orchestrator.workflows.gang.up import up
from orchestrator.workflows.plan.plan import PlanRequest, plan_inventory


@dataclass(frozen=True, slots=True, kw_only=True)
class PreshardRequest:
    """shared: a directory that all nodes of the gang see, and that the engine's user may write to."""

    plan: PlanRequest
    shared: str
    command: str = "checkpoint preshard"
    timeout_s: float = 3600.0
    replace: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Presharded:
    """folders: of each node; there: all nodes had theirs before, and nothing was done; nodes: what each keeps now."""

    folders: Mapping[str, str]
    there: bool
    nodes: PerNode[RankFilesLine]
    seconds: float


def preshard(inventory: Inventory, request: PreshardRequest, watcher: Watcher) -> Presharded:
    """Have every node of the chosen gangs keep its own ranks' files.

    Raises InputError where l40s_presharded is not set, or the directory is not one for all; what `up` raises where the
    engine does not come up, LockHeld, and the first node's failure to keep its files.
    """
    began = time.monotonic()
    gangs = chosen_gangs(inventory, request.plan.gangs)
    _refuse_unset(inventory, gangs)
    now = plan_inventory(inventory, request.plan).plan
    folders = {node.name: per_rank.folder(node.argv) for gang in now.gangs for node in gang.nodes}
    if all(folders.values()):
        nothing: PerNode[RankFilesLine] = PerNode(values={}, failures={})
        return Presharded(folders=folders, there=True, nodes=nothing, seconds=time.monotonic() - began)
    _refuse_apart(gangs, request.shared)
    outcome = up(
        _over(inventory, request.shared),
        UpRequest(
            plan=replace(request.plan, preshard=True),
            command=request.command,
            timeout_s=request.timeout_s,
            replace=request.replace,
            why="writes per-rank weight files",
        ),
        watcher,
    )
    down(inventory, DownRequest(gangs=tuple(gang.name for gang in gangs), command=request.command))
    kept = {}
    for gang in gangs:
        watcher.step(gang.name, "copying each node's own ranks' files")
        kept[gang.name] = _keep(gang, outcome.plan, request)
    folders = {name: folder for gang in gangs for name, folder in _targets(gang, outcome.plan).items()}
    values = {name: line for told in kept.values() for name, line in told.all().items()}
    return Presharded(
        folders=folders, there=False, nodes=PerNode(values=values, failures={}), seconds=time.monotonic() - began
    )


def check(nodes: Mapping[str, NodeSpec], folder: str) -> PerNode[RankFilesLine]:
    """Every node reads its files of a folder again and compares them with its manifest."""

    def one(session: Session) -> RankFilesLine:
        return _last(session, RankFilesRequest(op="check", folder=folder))

    with Fleet(nodes.values()) as fleet:
        return fleet.on_every(one)


def is_rank_folder(nodes: Mapping[str, NodeSpec], what: str) -> bool:
    """Whether a path is one of per-rank files: it is right below l40s_presharded of all of these nodes."""
    parent = PurePosixPath(what).parent
    return what.startswith("/") and all(
        node.presharded is not None and PurePosixPath(node.presharded) == parent for node in nodes.values()
    )


def _keep(gang: GangSpec, plan: Plan, request: PreshardRequest) -> PerNode[RankFilesLine]:
    planned = _plan_of(gang, plan)
    targets = _targets(gang, plan)
    stack = load_stack(request.plan.stack or planned.stack)
    argv = {node.name: node.argv for node in planned.nodes}
    ranks = {node.name: world_ranks(planned.layout, node.node_rank) for node in planned.nodes}

    def one(session: Session) -> RankFilesLine:
        name = session.spec.name
        source = per_rank.folder(argv[name])
        key = presharded_key(stack, source)
        return _last(
            session,
            RankFilesRequest(op="keep", source=source, folder=targets[name], ranks=ranks[name], key=key),
        )

    with Fleet(gang.nodes) as fleet, GangLock(fleet, gang, request.command, why="keeps per-rank weight files"):
        return fleet.on_every(one)


def _targets(gang: GangSpec, plan: Plan) -> dict[str, str]:
    argv = {node.name: node.argv for node in _plan_of(gang, plan).nodes}
    return {
        node.name: str(PurePosixPath(node.presharded or "/", PurePosixPath(per_rank.folder(argv[node.name])).name))
        for node in gang.nodes
    }


def _plan_of(gang: GangSpec, plan: Plan) -> GangPlan:
    return next(one for one in plan.gangs if one.name == gang.name)


def _last(session: Session, request: RankFilesRequest) -> RankFilesLine:
    for said in node_app.messages(session, "rank-files", request, RankFilesLine):
        if said.files is not None:
            return said
    raise NodeError("it ended without a result", where=session.spec.name, fix="run the same command again")


def _over(inventory: Inventory, shared: str) -> Inventory:
    """The inventory with per-rank files in the shared directory."""
    gangs = tuple(
        replace(gang, nodes=tuple(replace(node, presharded=shared) for node in gang.nodes)) for gang in inventory.gangs
    )
    return replace(inventory, gangs=gangs)


def _refuse_unset(inventory: Inventory, gangs: tuple[GangSpec, ...]) -> None:
    for gang in gangs:
        for node in gang.nodes:
            if not node.presharded:
                raise InputError(
                    f"l40s_presharded is not set for {node.name}; wanted the directory where it keeps its ranks' files",
                    where=inventory.path,
                    fix="set l40s_presharded: /var/lib/l40s-presharded below vars:, on a disk with space for them",
                )


def _refuse_apart(gangs: tuple[GangSpec, ...], shared: str) -> None:
    """The engine's ranks meet in the directory: each must see the others' files."""
    for gang in gangs:
        if len(gang.nodes) == 1:
            continue
        with Fleet(gang.nodes) as fleet:
            owners = same_roots(fleet, dict.fromkeys((node.name for node in gang.nodes), shared))
        apart = [node.name for node in gang.nodes if owners.get(node.name) != gang.leader.name]
        if apart:
            raise InputError(
                f"{', '.join(apart)} and {gang.leader.name} do not see the same directory {shared}",
                where="--shared",
                fix="export a directory by NFS and mount it on all nodes of the gang, writable for the engine's user",
            )
