"""What `status` shows: all gangs, and the router before them, asked at the same time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from contextlib import suppress
from dataclasses import replace
from functools import partial

from orchestrator.engines.serving import Serving, Worker
from orchestrator.engines.serving import workers as listed
from orchestrator.gang.overview import Overview, RouterGlance
from orchestrator.gang.remarks import of_router_entry, unaccepted, with_findings
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.router.host import ask_router, certificate_findings, router_gang
from orchestrator.gang.steps.standing import standing_gangs
from orchestrator.gang.steps.status.health import with_health
from orchestrator.gang.steps.status.reports import ask_serving, everything, interrupted, see, views_of
from orchestrator.gang.view import GangView
from orchestrator.model.chosen import chosen_gangs, concerned, named_gangs
from orchestrator.model.deadlines import BUSY_ASK_S, GLANCE_ASK_S, GLANCE_S
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import GangSpec, Inventory, RouterSpec
from orchestrator.protocol.errors import DeployError, NodeError, Unreachable
from orchestrator.records.documents import keep_least_free, read_told, unheard_file
from orchestrator.remote.deadline import ahead
from orchestrator.remote.fleet import Fleet, StragglerWait


def overview(operation: Operation, gangs: tuple[str, ...] = ()) -> Overview:
    """Look once at everything, or at the chosen gangs and the router before them. A router that does not answer in
    time keeps nobody waiting."""
    inventory, router = operation.inventory, operation.router
    chosen = [gang for gang in inventory.gangs if concerned(gang, gangs)] or chosen_gangs(inventory, gangs)
    if router is None:
        return _with_remarks(status(operation.fleet, chosen, gangs), inventory, chosen)
    begin = time.monotonic()
    aside = ahead(lambda: glance(router.fleet, router.spec))
    seen = _with_remarks(status(operation.fleet, chosen, gangs), inventory, chosen)
    try:
        seen_router = aside.result(max(0.5, begin + GLANCE_S - time.monotonic()))
    except TooLate:
        failure = Unreachable(
            f"its host did not answer within {GLANCE_S:.0f} s",
            where=router.spec.node.name,
            fix="run `l40s-deploy router status`, which waits longer",
        )
        seen_router = RouterGlance(url=router.spec.url, node=router.spec.node.name, error=failure)
    return with_entries(with_stated(replace(seen, router=seen_router), inventory.gangs), inventory.gangs)


def with_stated(seen: Overview, gangs: Sequence[GangSpec]) -> Overview:
    """With where the inventory says that its gangs serve. gangs: all of them"""
    stated = {node.stated_url.rstrip("/"): gang.name for gang in gangs for node in gang.machines if node.stated_url}
    known = {view.name for view in seen.views if view.service_url}
    unstated = any(not gang.leader.stated_url and gang.name not in known for gang in gangs)
    return replace(seen, stated=stated, unstated=unstated)


def with_entries(seen: Overview, gangs: Sequence[GangSpec]) -> Overview:
    """With a remark on each gang that serves and gets nothing from the router, unless its inventory accepts that."""
    router = seen.router
    if router is None or router.workers is None:
        return seen
    specs = {gang.name: gang for gang in gangs}
    views = []
    for view in seen.views:
        findings = of_router_entry(view, router.place(view.service_url))
        spec = specs.get(view.name)
        views.append(with_findings(view, unaccepted(findings, spec) if spec is not None else findings))
    return replace(seen, views=tuple(views))


def _with_remarks(seen: Overview, inventory: Inventory, gangs: Sequence[GangSpec]) -> Overview:
    """With what the doctor says of gangs that serve, and with receivers that hear nothing."""
    return _with_unheard(replace(seen, views=with_health(inventory.path, gangs, seen.views)), inventory)


def _with_unheard(seen: Overview, inventory: Inventory) -> Overview:
    """Receivers whose last notification did not arrive, as remarks on the first gang: they are for all of them."""
    unheard = read_told(unheard_file(inventory.path)) if inventory.notify and seen.views else {}
    if not unheard:
        return seen
    fix = "(fix: l40s-deploy notify --test)"
    remarks = [f"notifications do not reach {who}: {wrong} {fix}" for who, wrong in unheard.items()]
    first, *others = seen.views
    return replace(seen, views=(replace(first, remarks=(*first.remarks, *remarks)), *others))


def status(fleet: Fleet, gangs: Sequence[GangSpec], names: Sequence[str] = ()) -> Overview:
    """Look once at these gangs, or at their replicas where they stand as such; a node that does not answer is
    unreachable in its gang's view. names: only gangs and replicas that are called so. Raises InputError for others."""
    answers = everything(fleet, [node.name for gang in gangs for node in gang.machines], patience=StragglerWait())
    current = named_gangs(standing_gangs(gangs, answers.values.values()), names, where="l40s-deploy status")
    views = views_of(current, answers.values, answers.failures)
    answering = [node.name for view in views for node in view.nodes if node.error is None]
    begun = {name for answer in answers.values.values() for name in answer.begun}
    unfinished = [gang for gang in current if gang.name in begun]
    _keep_least_free(views)
    busy = _asked_what_they_do(fleet, current, views)
    begun_before = interrupted(fleet, unfinished, only=answering)
    return Overview(views=views, interrupted=begun_before, serving=_told_in_time(busy))


def _asked_what_they_do(
    fleet: Fleet, gangs: Sequence[GangSpec], views: Sequence[GangView]
) -> dict[str, Future[Serving | None]]:
    """The engines of gangs that are well are asked beside everything else."""
    well = [(gang, view) for gang, view in zip(gangs, views, strict=True) if view.state is GangState.READY]
    return {gang.name: ahead(partial(ask_serving, fleet, gang, view.service_url)) for gang, view in well}


def _told_in_time(asked: Mapping[str, Future[Serving | None]]) -> dict[str, Serving]:
    """An engine that does not tell keeps nobody waiting, and a gang is shown whatever becomes of this question."""
    ends = time.monotonic() + BUSY_ASK_S
    told: dict[str, Serving] = {}
    for name, promised in asked.items():
        with suppress(Exception):
            busy = promised.result(max(0.0, ends - time.monotonic()))
            if busy is not None:
                told[name] = busy
    return told


def _keep_least_free(views: Sequence[GangView]) -> None:
    """For the next plan, which proposes a memory fraction by it."""
    for view in views:
        if view.serves and view.plan_id and view.least_free_bytes is not None:
            keep_least_free(view.name, view.plan_id, view.least_free_bytes)


def glance(fleet: Fleet, spec: RouterSpec) -> RouterGlance:
    """Look at the router's agent and ask for its workers, at the same time. fleet: of the router's gang"""
    asked = ahead(lambda: ask_router(fleet, spec, "GET", "/workers", timeout_s=GLANCE_ASK_S))
    (view,) = see(fleet, [router_gang(spec)])
    if view.unreachable:
        error = view.unreachable[0].error
        known = None if isinstance(error, Unreachable) else view.state
        return RouterGlance(url=spec.url, node=spec.node.name, state=known, error=error)
    try:
        answer = asked.result(GLANCE_S)
        workers = listed(answer.body) if answer.ok else None
        why = "" if workers is not None else answer.error or f"HTTP {answer.status}"
    except (DeployError, ValueError, TooLate) as failure:
        workers, why = None, str(failure) or "it did not answer in time"
    wrong = _wrong(spec, view, workers, why)
    if workers is not None and not view.running:
        workers = None
    return RouterGlance(
        url=spec.url_of(view.told_url if view.running else ""),
        node=spec.node.name,
        state=view.state,
        workers=workers,
        error=wrong,
        findings=certificate_findings(spec, view),
        request_limit=view.request_limit,
    )


def _wrong(spec: RouterSpec, view: GangView, workers: Sequence[Worker] | None, why: str) -> NodeError | None:
    """What an operator should know of a router that was seen; None for nothing. why: there are no workers."""
    fix = "l40s-deploy router up"
    if workers is not None and not view.running:
        what = f"another router, not started by l40s-deploy, answers on port {spec.port}"
        fix = "find it there with `ss -ltnp`, or set another l40s_router_port"
    elif view.state is GangState.FAILED:
        what = view.cause.text if view.cause else "it ended without a known cause"
    elif workers is None and view.state is GangState.READY:
        what = f"it does not list its workers: {why[:200]}"
    else:
        return None
    return NodeError(what, where=spec.node.name, fix=fix)
