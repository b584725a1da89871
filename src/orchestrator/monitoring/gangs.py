"""Gangs, nodes and ranks as metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.doctor.rules.support.catalogue import UNKNOWN_CAUSE
from orchestrator.gang.overview import degraded_reason
from orchestrator.gang.pace import PHASES
from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.errors import DeployError
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.model.inventory import GangSpec
from orchestrator.monitoring import catalogue as names
from orchestrator.monitoring.catalogue import Families
from orchestrator.monitoring.scene import NOTHING_PAST, Past, RouterSeen, Scene
from orchestrator.protocol.gauges import FiguresAnswer
from orchestrator.protocol.report import Cause, RankState
from orchestrator.protocol.verbs import LockHolder

GUARD = "guard."
"""Before a gang's name: the lock of the guard that watches it (gang/steps/guard)."""
_NODE_STATES = tuple(state.value for state in NodeState if state not in (NodeState.LEFT_OUT, NodeState.SPARE))


def gang_figures(families: Families, scene: Scene) -> None:
    """Every gang with its nodes and ranks, and the router before them."""
    for gang, view in zip(scene.gangs, scene.views, strict=True):
        _gang(families, gang, view, scene)
        _past(families, gang, view, scene.past.get(gang.name, NOTHING_PAST))
        for node in view.nodes:
            _node(families, gang.name, node)
            _contacts(families, gang.name, node.name, scene.nodes.get(node.name))
    for receiver, heard in scene.receivers.items():
        families.add(names.NOTIFIER_UP, heard, receiver=receiver)
    if scene.router is not None:
        _router(families, scene.router, scene.views)


def cause_labels(cause: Cause) -> dict[str, object]:
    """Where and by which entry of the catalogue of causes a gang failed."""
    rank = "" if cause.tp_rank is None else cause.tp_rank
    return {"node": cause.node, "tp_rank": rank, "cause": cause.signature or UNKNOWN_CAUSE}


def _gang(families: Families, gang: GangSpec, view: GangView, scene: Scene) -> None:
    name = gang.name
    place = _place(scene.router, view) if scene.router is not None else None
    reason = degraded_reason(view, place)
    families.add(
        names.GANG_INFO, 1, gang=name, model=view.model, stack=view.stack, plan_id=view.plan_id, run_id=view.run_id
    )
    families.states(names.GANG_STATE, view.state.value, (state.value for state in GangState), gang=name)
    families.add(names.GANG_SERVING, view.serves, gang=name)
    families.add(names.GANG_DEGRADED, 1 if reason else None, gang=name, reason=reason)
    families.add(names.GANG_LATE, view.late is not None, gang=name)
    failed = view.cause if view.state is GangState.FAILED else None
    families.add(names.GANG_FAILED, 1 if failed else None, gang=name, **(cause_labels(failed) if failed else {}))
    families.add(names.LEASE_SECONDS, gang.leader.lease_s, gang=name)
    _locks(families, name, scene.nodes)
    ready = [node.started_s - node.phase_s for node in view.nodes if node.phase.name == "ready" and node.alive]
    families.add(names.START_SECONDS, max(ready, default=None), gang=name)
    families.add(names.PROBE_SECONDS, _probe(gang, scene) if view.running else None, gang=name)


def _probe(gang: GangSpec, scene: Scene) -> float | None:
    """The leader's report has it."""
    report = _raw_report(scene.nodes.get(gang.leader.name), gang.name)
    taken = report.get("service_latency_s")
    return float(taken) if isinstance(taken, (int, float)) and taken > 0 else None


def _raw_report(answer: FiguresAnswer | DeployError | None, gang: str) -> Mapping[str, Any]:
    reports = answer.reports if isinstance(answer, FiguresAnswer) else ()
    return next((one for one in reports if isinstance(one, Mapping) and one.get("gang") == gang), {})


def _locks(families: Families, gang: str, nodes: Mapping[str, FiguresAnswer | DeployError]) -> None:
    """Of the first node that has one: a command holds the lock on all of them."""
    answers = [answer for answer in nodes.values() if isinstance(answer, FiguresAnswer)]

    def holder(name: str) -> LockHolder | None:
        return next((answer.locks[name] for answer in answers if name in answer.locks), None)

    held, guard = holder(gang), holder(GUARD + gang)
    families.add(
        names.LOCK_HELD,
        1 if held else None,
        gang=gang,
        holder=held.name if held else "",
        command=(held.command or "").split(" --")[0] if held else "",
    )
    families.add(names.LOCK_AGE, held.age_s if held else None, gang=gang)
    families.add(names.GUARDED, guard is not None and not guard.stale, gang=gang)


def _past(families: Families, gang: GangSpec, view: GangView, past: Past) -> None:
    for cause, count in past.restarts.items():
        families.add(names.RESTARTS, count, gang=gang.name, cause=cause)
    if past.failure is not None:
        families.add(names.LAST_FAILURE, past.failure.at, gang=view.name, **cause_labels(past.failure.cause))
    for phase, seconds in past.phases.items():
        families.add(names.PHASE_SECONDS, seconds, gang=gang.name, phase=phase)


def _node(families: Families, gang: str, node: NodeView) -> None:
    who = {"gang": gang, "node": node.name}
    families.add(names.NODE_UP, node.error is None, **who)
    families.states(names.NODE_STATE, node.state, _NODE_STATES, **who)
    if node.alive:
        families.states(names.NODE_PHASE, node.phase.name or "none", PHASES, **who)
        families.add(names.PHASE_STEP, node.phase.step, **who)
        families.add(names.PHASE_STEPS, node.phase.of, **who)
        families.add(names.PHASE_AGE, node.phase_s, **who)
    families.add(names.LEFT_BEHIND, len(node.left_behind) if node.error is None else None, **who)
    for rank in node.ranks:
        labels = {**who, "gpu": rank.gpu, "tp_rank": rank.tp_rank}
        families.add(names.RANK_ALIVE, rank.state in (RankState.ALIVE, RankState.STOPPED), **labels)
        families.add(names.RANK_MEMORY, rank.gpu_memory_bytes, **labels)


def _contacts(families: Families, gang: str, node: str, answer: FiguresAnswer | DeployError | None) -> None:
    links = _raw_report(answer, gang).get("links")
    for peer, word in links.items() if isinstance(links, Mapping) else ():
        families.add(names.PEER_HEARD, word == "heard", gang=gang, node=node, peer=peer)


def _place(router: RouterSeen, view: GangView) -> str | None:
    if router.workers is None:
        return None
    worker = next((one for one in router.workers if one.url == view.service_url.rstrip("/")), None)
    return "out" if worker is None else "in" if worker.healthy else "unhealthy"


def _router(families: Families, router: RouterSeen, views: tuple[GangView, ...]) -> None:
    families.add(names.ROUTER_UP, router.workers is not None, node=router.node)
    gangs = {view.service_url.rstrip("/"): view.name for view in views if view.service_url}
    for worker in router.workers or ():
        families.add(names.WORKER_UP, worker.healthy, gang=gangs.get(worker.url, ""), url=worker.url)
        families.add(names.WORKER_LOAD, worker.load, gang=gangs.get(worker.url, ""), url=worker.url)
