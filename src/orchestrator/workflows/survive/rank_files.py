"""What was staged with per-rank weight files starts again without them where a node has them no more.

The engine would take a missing folder for an order to write it, and its ranks write into one directory that all of them
share, which each node's own is not. So all nodes read the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from orchestrator.model.inventory import GangSpec, NodeSpec
from orchestrator.node.agent import staged_files
from orchestrator.planning import per_rank, places
from orchestrator.protocol.looks import PrerequisitesAnswer, PrerequisitesRequest
from orchestrator.protocol.staging import CacheOrder, StagingRequest
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import ask
from orchestrator.remote.session import Session
from orchestrator.rendering import without_flags
from orchestrator.workflows.deadlines import PREREQUISITES_S
from orchestrator.workflows.gang.raising import Watcher
from orchestrator.workflows.plan.plan import config_of

Requests = Mapping[str, StagingRequest]


def else_the_checkpoint(fleet: Fleet, gang: GangSpec, requests: Requests, watcher: Watcher) -> Requests:
    """These requests, without per-rank files where a node lacks its own; said in a line. A node that can't be asked is
    not judged: staging finds out why."""
    orders = {node.name: order for node in gang.nodes if (order := _order(node, requests[node.name])) is not None}
    lacking = _lacking(fleet, requests, orders) if orders else []
    plain = {name: without_rank_files(request) for name, request in requests.items()} if lacking else {}
    if not plain or None in plain.values():
        return requests
    model = next(iter(requests.values())).model
    watcher.step(
        gang.name,
        f"no complete per-rank weight files of its checkpoint on {', '.join(lacking)}: all nodes read the checkpoint"
        f" itself; stop the gang and write them again with `l40s-deploy checkpoint preshard --model {model}"
        " --shared DIR`, the next `up` reads them",
    )
    return {name: request for name, request in plain.items() if request is not None}


def _order(node: NodeSpec, request: StagingRequest) -> CacheOrder | None:
    """What it reads of per-rank files, None where the plan did not say so: who asks the engine for them by a flag has
    it as he asked."""
    asked = (*(request.asked.extra_args if request.asked else ()), *node.overrides.args)
    own = any(word.partition("=")[0] == per_rank.FORMAT for word in asked)
    return request.cache if request.cache is not None and request.cache.presharded and not own else None


def _lacking(fleet: Fleet, requests: Requests, orders: Mapping[str, CacheOrder]) -> list[str]:
    def one(session: Session) -> bool:
        order = orders[session.spec.name]
        question = PrerequisitesRequest(
            model_path=requests[session.spec.name].model_path, presharded=_parent(order.presharded)
        )
        return has(order, ask(session, "prerequisites", question, PrerequisitesAnswer, deadline_s=PREREQUISITES_S))

    answers = fleet.on_every(one, only=list(orders)).values
    return [name for name in orders if answers.get(name) is False]


def has(order: CacheOrder, told: PrerequisitesAnswer) -> bool:
    """Whether a node has the complete files of its ranks, of the checkpoint that lies there now."""
    folder = PurePosixPath(order.presharded).name
    complete = any(
        one.complete and one.folder == folder and set(one.ranks) == set(order.ranks) for one in told.rank_files
    )
    return complete and places.may_be_of(folder, config_of(told)[0], told.weights)


def without_rank_files(request: StagingRequest) -> StagingRequest | None:
    """The request for a start that reads the checkpoint; None where its launch script is not one of ours."""
    flags = per_rank.flags(request.argv)
    if request.cache is None or not flags:
        return None
    script = without_flags(request.launch_script, flags, unseen=_parent(request.cache.presharded))
    if script is None:
        return None
    return replace(
        request,
        argv=per_rank.without(request.argv),
        cache=replace(request.cache, presharded=""),
        launch_script=script,
        launch_sha256=staged_files.digest(script),
    )


def _parent(folder: str) -> str:
    return str(PurePosixPath(folder).parent)
