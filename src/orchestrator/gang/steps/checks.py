"""The checks of a start: of the doctor, of the plan that was staged, and of every node's agent.

Whatever stops a gang in order to start it again asks them first, while it serves: what would refuse the start refuses
the stop. A guard asks them before it restarts a gang that failed.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from orchestrator.doctor.steps.doctor import Examination, check_accept, forbidding, sort_out
from orchestrator.gang.steps.examination import examine
from orchestrator.gang.steps.raising import Watcher
from orchestrator.gang.steps.staging import Staged, other_checkpoint, resolved_on, staged_plan
from orchestrator.gang.steps.status.reports import request_keys
from orchestrator.model.deadlines import ARM_S
from orchestrator.model.finding import Finding
from orchestrator.model.inventory import GangSpec
from orchestrator.model.topology import Topology
from orchestrator.planning import page_cache
from orchestrator.planning.facts_of_now import gone, off_the_rails
from orchestrator.protocol.errors import DeployError, FindingsError, InputError
from orchestrator.protocol.report import as_one
from orchestrator.protocol.verbs import CheckAnswer
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import ask
from orchestrator.remote.session import Session
from orchestrator.topology.gpus import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """What forbids a start. nodes: those that do not answer or that a start is refused on.
    outdated: it is the plan that these nodes can't carry out any more; a new one would do without what is gone.
    accept: what sets it aside, where it is a finding of the doctor."""

    error: DeployError
    nodes: tuple[str, ...] = ()
    outdated: bool = False
    accept: str = ""


def refuse_starts(fleet: Fleet, plans: Sequence[Staged], watcher: Watcher, *, accept: Collection[str] = ()) -> None:
    """Raise what forbids the start of one of these plans. accept: findings that do not, `ID` or `ID@node`, beside those
    that were accepted when the plan was made.

    Raises InputError for an id or a node in `accept` that does not exist.
    """
    if not plans:
        return
    check_accept(accept, {node.name for plan in plans for node in plan.gang.nodes}, (page_cache.ID,))
    watcher.step(", ".join(plan.gang.name for plan in plans), "checking every node before anything is stopped")
    if (against := against_starts(fleet, plans, watcher, accept=accept)) is not None:
        if against.accept:
            against.error.fix += f"; or accept it with --accept {against.accept}"
        raise against.error


def against_starts(
    fleet: Fleet, plans: Sequence[Staged], watcher: Watcher, *, accept: Collection[str] = ()
) -> Objection | None:
    """What forbids a start: a node that does not answer, the first finding of severity stop, a node without any RDMA
    port under a plan that needs one, or what a node's agent would refuse; None for none of these.

    Then also reports what the nodes no longer have. What the gangs' own runs hold is free by the time of their start.
    """
    examined = examine(fleet, {node.name: node for plan in plans for node in plan.gang.nodes})
    for plan in plans:
        if (against := objection(_of(plan, examined, accept), plan.gang.name)) is not None:
            return against
        say_gone(plan, examined.cluster.topologies, watcher)
        if (against := _outdated(plan, examined.cluster.topologies)) is not None:
            return against
    return against_on_nodes(fleet, plans)


def _of(plan: Staged, examined: Examination, accept: Collection[str]) -> Examination:
    """What the doctor says of this plan's nodes, and of no node in particular, without what was accepted."""
    nodes = {node.name: node for node in plan.gang.nodes}
    mine = [finding for finding in examined.findings if not finding.node or finding.node in nodes]
    left, accepted = sort_out(mine, nodes, (*accept, *plan.accepted))
    failures = {name: failure for name, failure in examined.failures.items() if name in nodes}
    return replace(examined, findings=left, accepted=accepted, failures=failures)


def standing_stops(fleet: Fleet, gang: GangSpec) -> tuple[tuple[Finding, ...], frozenset[str]]:
    """What the doctor would refuse a restart of this gang for, while it serves, by the judgement of a start; and the
    nodes that did not answer it, '' among them where there is one, for what is the cluster's."""
    specs = {node.name: node for node in gang.nodes}
    examined = examine(fleet, specs)
    accepted: tuple[str, ...] = ()
    with suppress(DeployError):  # what was accepted at its start is known to its nodes only
        accepted = tuple(staged_plan(fleet, gang, whole=False).accepted)
    left, _ = sort_out(examined.findings, specs, accepted)
    unread = frozenset(examined.failures)
    return tuple(forbidding(left, strict=False)), (unread | {""}) if unread else unread


def objection(examined: Examination, gang: str) -> Objection | None:
    """What of the doctor's answer forbids a start of this gang."""
    stops = forbidding(examined.findings, strict=False)
    nodes = (*examined.failures, *dict.fromkeys(finding.node for finding in stops if finding.node))
    for failure in examined.failures.values():
        return Objection(error=failure, nodes=nodes)
    for finding in stops:
        error = FindingsError(f"{finding.id}: {finding.title}", where=finding.node or f"gang {gang}", fix=finding.fix)
        return Objection(error=error, nodes=nodes, accept=finding.id + (f"@{finding.node}" if finding.node else ""))
    return None


def _outdated(plan: Staged, nodes: Mapping[str, Topology]) -> Objection | None:
    for node in plan.gang.nodes:
        if node.name in nodes and off_the_rails(plan.requests[node.name], Machine(node, nodes[node.name])):
            error = InputError(
                "none of its RDMA ports can be used, and the gang's plan needs RDMA",
                where=node.name,
                fix="bring a port up (`l40s-deploy doctor` shows how), or have the gang planned anew, over TCP: run"
                f" `l40s-deploy up --model {shlex.quote(plan.model)} --gang {plan.gang.name}`",
            )
            return Objection(error=error, outdated=True)
    return None


def say_gone(plan: Staged, nodes: Mapping[str, Topology], watcher: Watcher) -> None:
    """Report planned hardware that a node no longer has."""
    for node in (member for member in plan.gang.nodes if member.name in nodes):
        request, _ = resolved_on(node, plan.requests[node.name], nodes)
        if words := ", ".join(gone(request, nodes[node.name])):
            words = f"{node.name} no longer has what its plan needs: {words}"
            watcher.step(plan.gang.name, f"{words}; `l40s-deploy plan --diff` shows what `up` would change")


def refuse_on_nodes(fleet: Fleet, plans: Sequence[Staged]) -> None:
    """Raise what the nodes' agents would refuse of plans that the doctor's findings do not forbid."""
    if (against := against_on_nodes(fleet, plans)) is not None:
        raise against.error


def against_on_nodes(fleet: Fleet, plans: Sequence[Staged]) -> Objection | None:
    """What the nodes' agents would refuse: no stack or model, another checkpoint than the others have, a port or a GPU
    that somebody else holds."""
    plan_of = {node.name: plan for plan in plans for node in plan.gang.nodes}

    def one(session: Session) -> CheckAnswer:
        plan = plan_of[session.spec.name]
        request = replace(plan.requests[session.spec.name], secrets=None, key="", launch_script="")
        asked = replace(request, **request_keys(session.spec, plan.gang.name))
        return ask(session, "check", asked, CheckAnswer, deadline_s=ARM_S)

    answers = fleet.on_every(one, only=list(plan_of))
    refused = {name: _refusal(name, answer) for name, answer in answers.values.items() if answer.refusals}
    for error in (*answers.failures.values(), *refused.values()):
        return Objection(error=error, nodes=(*answers.failures, *refused))
    for plan in plans:
        checkpoints = {name: answers.values[name].checkpoint for name in plan.requests if name in answers.values}
        if different := other_checkpoint(plan.requests, checkpoints):
            return Objection(error=different)
    return None


def _refusal(name: str, answer: CheckAnswer) -> FindingsError:
    refused = as_one(answer.refusals)
    return FindingsError(refused.what, where=f"{name}: {refused.where}", fix=refused.fix)
