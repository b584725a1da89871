"""Ask every node what its agents say, and see the gangs in it; what commands have begun on gangs and not finished.

A host's name says too little of a lock's holder: containers on a host's network share it, and so do cloned machines. A
process is known by the boot of its machine, its PID namespace, its id there and its start time (proc(5),
pid_namespaces(7)).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from orchestrator import __version__
from orchestrator.engines.serving import METRICS, Serving, serving
from orchestrator.gang.agreement import DISAGREES, BelievedService, current_run, leader_report, outvoted, service_of
from orchestrator.gang.names import as_called_now, former_gang, former_nodes, renamed_words
from orchestrator.gang.operations import GangOperation, together
from orchestrator.gang.remarks import accepted_everywhere, unaccepted
from orchestrator.gang.view import Answer, GangView, view
from orchestrator.model.advice import put_back, start_with_a_model
from orchestrator.model.chosen import in_order
from orchestrator.model.deadlines import ANSWER_S, METRICS_S
from orchestrator.model.gang_state import NodeState
from orchestrator.model.inventory import ROUTER_GANG, GangSpec, NodeSpec
from orchestrator.model.per_node import PerNode
from orchestrator.node import processes
from orchestrator.protocol.errors import DeployError, NodeError, RunsElsewhere, WithoutFiles
from orchestrator.protocol.message import Unreadable, side
from orchestrator.protocol.report import Cause, Report
from orchestrator.protocol.verbs import (
    AskRequest,
    HttpRequest,
    LockAnswer,
    LockHolder,
    LockRequest,
    OtherAgent,
    ReportAnswer,
    ReportRequest,
)
from orchestrator.protocol.versions import is_newer
from orchestrator.records.plans import recorded_url
from orchestrator.remote.fleet import Fleet, StragglerWait
from orchestrator.remote.node_app import ask, ask_http, ask_lock
from orchestrator.remote.session import Session

WAIT_S = 0.2
NOT_RENAMED: Mapping[str, str] = MappingProxyType({})
OLD_S = 1.0
"""Who answered so long before another node was given up is asked again: what it said of that one is old."""


def request_keys(node: NodeSpec, gang: str | None = None) -> dict[str, Any]:
    """The keys that every request to a gang verb begins with."""
    return {"state_dir": node.state_dir, "gang": gang or node.gang}


def because(cause: Cause | None) -> Cause | None:
    """What tells an order to stop which failure the gang is ended for; None for none."""
    if cause is None:
        return None
    return Cause(node=cause.node, text=cause.text, fix=cause.fix, signature=cause.signature, hang=cause.hang)


def see(
    fleet: Fleet,
    gangs: Iterable[GangSpec],
    *,
    seen: dict[str, str] | None = None,
    patience: StragglerWait | None = None,
) -> tuple[GangView, ...]:
    """Every gang as it is now, one question a node.

    seen: what each node said last, kept here from call to call: a node then answers when something has changed, or
    after WAIT_S. One node's news waits for the others' answers, so that is short.
    patience: with a node that does not answer while the others do.
    """
    chosen = tuple(gangs)
    names = [node.name for gang in chosen for node in gang.machines if node.name in fleet.nodes]
    answers = _told(fleet, names, partial(ask_report, seen=seen), ask_report, patience)
    return views_of(chosen, answers.values, answers.failures, machines=fleet.nodes)


def everything(
    fleet: Fleet, only: Collection[str] | None = None, *, patience: StragglerWait | None = None
) -> PerNode[ReportAnswer]:
    """What each of these nodes, by default every one of the fleet, reports of all gangs that it knows."""
    return _told(fleet, list(fleet.nodes if only is None else only), _ask_all, _ask_all, patience)


def _told(
    fleet: Fleet,
    names: Sequence[str],
    question: Callable[[Session], ReportAnswer],
    once_more: Callable[[Session], ReportAnswer],
    patience: StragglerWait | None,
) -> PerNode[ReportAnswer]:
    began = time.monotonic()
    answers = fleet.on_every(question, only=names, patience=patience)
    if answers.failures and answers.values and time.monotonic() - began > OLD_S + WAIT_S:
        again = fleet.on_every(once_more, only=list(answers.values))
        return PerNode(values=again.values, failures={**answers.failures, **again.failures})
    return answers


def as_it_runs(gang: GangSpec, seen: GangView) -> GangSpec:
    """The gang on the nodes of its newest run as it was seen, in their node-rank order, without the spares that wait:
    whoever works on it then waits for none of them."""
    known = {node.name for node in gang.machines}
    members = [name for name in seen.members if name in known]
    if members and members != [node.name for node in gang.nodes]:
        return in_order(gang, members)
    return replace(gang, spares=())


def views_of(
    gangs: Iterable[GangSpec],
    values: Mapping[str, ReportAnswer],
    failures: Mapping[str, DeployError],
    *,
    machines: Mapping[str, NodeSpec] | None = None,
) -> tuple[GangView, ...]:
    """The gangs in what their nodes answered; a report that can't be read is that node's failure.

    machines: every node of the inventory by name; None: those of these gangs
    """
    chosen = tuple(gangs)
    known = machines if machines is not None else {node.name: node for gang in chosen for node in gang.machines}
    return tuple(_seen(gang, values, failures, known) for gang in chosen)


def _seen(
    gang: GangSpec,
    values: Mapping[str, ReportAnswer],
    failures: Mapping[str, DeployError],
    machines: Mapping[str, NodeSpec],
) -> GangView:
    """Where it serves is what the inventory, this controller's record of the plan and the other members say too."""
    renamed = _renamed(gang, values)
    answers: dict[str, Answer] = {
        node.name: failures.get(node.name) or _report(gang, node, values[node.name], renamed, machines)
        for node in gang.machines
        if not node.spare or node.name in values or node.name in failures
    }
    seen = view(gang.name, answers, tuple(node.name for node in gang.machines if node.spare))
    service = _service(gang, seen, answers)
    asked = [node for node in gang.machines if node.name in values]
    strangers = [words for node in asked for words in _strangers(node, values[node.name])]
    apart = _apart(gang, seen, answers)
    remarks = tuple(filter(None, (service.remark, *strangers, *renamed_words(renamed), *apart, *seen.remarks)))
    transport = unaccepted(seen.transport, gang)
    known = replace(seen, service_url=service.url, remarks=remarks, transport=transport)
    return replace(known, accepted=accepted_everywhere(gang))


def _apart(gang: GangSpec, seen: GangView, answers: Mapping[str, Answer]) -> Iterator[str]:
    """Where a living run's members are not whom the inventory has in the gang, or not where it has them."""
    hosts = {node.name: node.reach.host for node in gang.machines}
    members = seen.members if seen.running else ()
    if others := [name for name in members if name not in hosts]:
        yield f"it runs on {', '.join(others)} too, which this inventory does not have in the gang"
    for name in members:
        if name in answers and answers[name] is None:
            yield f"{name} has a part in the run, and nothing of it is at {hosts[name]}: is that its address?"


def _service(gang: GangSpec, seen: GangView, answers: Mapping[str, Answer]) -> BelievedService:
    reports = {name: answer for name, answer in answers.items() if isinstance(answer, Report)}
    current = current_run(reports)
    leader = leader_report(current, seen.members)
    if leader is None:
        return BelievedService(url="")
    if outvoted(current, reports):
        remark = (
            f"{DISAGREES}: as many of its nodes are in another run as in {leader.run_id}: where it serves is unknown"
        )
        return BelievedService(url="", remark=remark)
    return service_of(
        gang,
        leader.node,
        leader.service_url,
        recorded=recorded_url(gang.name, seen.plan_id),
        witnesses=[report.serves_at for report in current.values() if report is not leader],
    )


def words_before(fleet: Fleet, gangs: Sequence[GangSpec]) -> dict[str, str]:
    """The state of each node's part of its gang in one word, before something is done to it; raises nothing."""
    names = [node.name for gang in gangs for node in gang.nodes]
    asked = fleet.on_every(ask_report, only=names, patience=StragglerWait()).values
    return {node.name: _word_of(node, gang, asked) for gang in gangs for node in gang.nodes}


def _word_of(node: NodeSpec, gang: GangSpec, asked: Mapping[str, ReportAnswer]) -> str:
    if node.name not in asked:
        return "unreachable"
    report = _report(gang, node, asked[node.name], _renamed(gang, asked), {})
    if isinstance(report, Report):
        return report.word
    if isinstance(report, WithoutFiles):
        return NodeState.UNKNOWN.value
    return "absent" if report is None else "unreadable"


def ask_report(session: Session, seen: dict[str, str] | None = None) -> ReportAnswer:
    """One node's reports; seen as of `see`."""
    name = session.spec.name
    request = ReportRequest(**request_keys(session.spec))
    if seen is not None:
        request = replace(request, seen=seen.get(name), wait_s=WAIT_S)
    answer = ask(session, "report", request, ReportAnswer, deadline_s=ANSWER_S)
    if seen is not None:
        seen[name] = answer.seen
    return answer


def ask_serving(fleet: Fleet, gang: GangSpec, url: str) -> Serving | None:
    """What the engine that serves there is busy with, asked on its leader; None where it does not tell.

    url: where it serves, on the leader
    """
    asks = (HttpRequest(url=f"{url.rstrip('/')}{METRICS}", timeout_s=METRICS_S),)
    asked = partial(
        ask_http, request=AskRequest(**request_keys(gang.leader, gang.name), asks=asks), deadline_s=ANSWER_S
    )
    answers = fleet.on_every(asked, only=[gang.leader.name]).values.get(gang.leader.name)
    return serving(answers[0].body) if answers and answers[0].ok else None


def _ask_all(session: Session) -> ReportAnswer:
    return ask(session, "report", ReportRequest(state_dir=session.spec.state_dir), ReportAnswer, deadline_s=ANSWER_S)


def refuse_elsewhere(views: Iterable[GangView], *, to_end: bool = False) -> None:
    """Raises RunsElsewhere where one of these gangs runs with its state in another place, and WithoutFiles where its
    agents have lost their files. to_end: it is to be ended, which needs no files."""
    refused = RunsElsewhere if to_end else RunsElsewhere | WithoutFiles
    for node in (node for seen in views for node in seen.nodes):
        if isinstance(node.error, refused):
            raise node.error


def _report(
    gang: GangSpec,
    node: NodeSpec,
    answer: ReportAnswer,
    renamed: Mapping[str, str],
    machines: Mapping[str, NodeSpec],
) -> Answer:
    """Its report; an agent of the same node that has another state directory and the same port, or another gang's name,
    is said unless this one lives, and so is another node's.

    renamed: as of `former_nodes`; machines: as of `views_of`
    """
    report = own_report(node, gang.name, answer, renamed)
    if isinstance(report, Report) and report.alive:
        return report
    other = next((agent for agent in _same_part(node, answer) if not agent.stranger), None)
    if other is not None:
        what, fix = other.what(answer.state_dir, answer.user), other.fix(answer.user)
        return RunsElsewhere(what, where=f"gang {gang.name}: {node.name}", fix=fix)
    unfiled = [agent for agent in answer.without_files if not agent.stranger]
    if former := former_gang(gang, node, [*_living(answer), *unfiled]):
        return _of_former(gang, node, former, _living(answer))
    for agent in unfiled:
        if agent.gang == gang.name:
            return _without_files(gang, node, agent)
    return _of_another(gang, node, _living(answer), machines) or report


def _of_former(gang: GangSpec, node: NodeSpec, former: str, living: Iterable[Report]) -> RunsElsewhere:
    """Of a node whose gang was renamed, or that was given to another gang, while it runs."""
    own = {member.name for member in gang.machines}
    run = next((report for report in living if (report.gang, report.node) == (former, node.name)), None)
    others = [name for name in run.members if name not in own] if run is not None else []
    what = f"gang {former} runs there; this inventory calls its gang {gang.name}"
    end_it = f"l40s-deploy down {gang.name} --as {former}"
    fix = f"call it {former} again in the inventory, or end what runs there with `{end_it}`"
    if others:
        what = f"{node.name} serves {former}, with {', '.join(others)}; this inventory gives it to {gang.name}"
        fix = put_back(node.name, former)
    return RunsElsewhere(what, where=f"gang {gang.name}: {node.name}", fix=fix)


def _of_another(
    gang: GangSpec, node: NodeSpec, living: Sequence[Report], machines: Mapping[str, NodeSpec]
) -> DeployError | None:
    """Of a machine that serves this gang as another of its nodes, or another gang as one of its nodes, which this
    inventory has at another address."""
    fellow = next((report for report in living if report.gang == gang.name), None)
    if fellow is not None:
        return _of_a_fellow(node, fellow)
    for report in living:
        other = machines.get(report.node)
        if other is not None and other.gang == report.gang and other.reach != node.reach:
            what = f"the machine at {node.reach.host} serves {report.gang} as {other.name}; what {node.name} does is"
            return RunsElsewhere(
                f"{what} unknown",
                where=f"gang {gang.name}: {node.name}",
                fix=f"correct ansible_host of {node.name}, or of {other.name}, in the inventory",
            )
    return None


def _of_a_fellow(node: NodeSpec, fellow: Report) -> NodeError:
    """Of a machine that another node's part of the gang runs on."""
    return NodeError(
        f"the machine at {node.reach.host} is {fellow.node} to the gang that runs there; what {node.name} does is"
        " unknown",
        where=node.name,
        fix=f"correct ansible_host of {node.name}, or of {fellow.node}, in the inventory",
    )


def _without_files(gang: GangSpec, node: NodeSpec, agent: OtherAgent) -> WithoutFiles:
    end, start = f"l40s-deploy down {gang.name}", start_with_a_model(gang.name)
    if gang.name == ROUTER_GANG:
        end, start = "l40s-deploy router down", "run `l40s-deploy router up`"
    return WithoutFiles(
        f"its agent (pid {agent.pid}) runs, and no file in {agent.state_dir} tells of it: was that directory deleted?"
        " Whether it serves is unknown",
        where=f"gang {gang.name}: {node.name}",
        fix=f"end it with `{end}` when requests may fail, then {start}",
    )


def _living(answer: ReportAnswer) -> list[Report]:
    """What the node's living agents report, of whichever gang; what can't be read is left out."""
    reports = (Report.read(raw) for raw in answer.reports if isinstance(raw, dict))
    return [report for report in reports if isinstance(report, Report) and report.alive]


def _same_part(node: NodeSpec, answer: ReportAnswer) -> list[OtherAgent]:
    """Who shows himself to be the agent of this part of the gang, with another state directory."""
    return [other for other in answer.others if (other.node, other.port) == (node.name, node.ports.agent)]


def _strangers(node: NodeSpec, answer: ReportAnswer) -> list[str]:
    """What a local user's process says of itself, which counts for nothing, in words."""
    others = [*_same_part(node, answer), *(agent for agent in answer.without_files if agent.node == node.name)]
    others = [other for other in others if other.stranger]
    return [f"{node.name}: {other.what('', '')}; {other.fix('')}" for other in others]


def own_report(node: NodeSpec, gang: str, answer: ReportAnswer, renamed: Mapping[str, str] = NOT_RENAMED) -> Answer:
    """What this node says of its part of this gang. renamed: as of `former_nodes`."""
    for raw in answer.reports:
        if not isinstance(raw, dict) or raw.get("gang") != gang:
            continue
        if node.name in (raw.get("node"), renamed.get(str(raw.get("node")))):
            report = Report.read(raw)
            return (
                unreadable(node.name, raw, report) if isinstance(report, Unreadable) else as_called_now(report, renamed)
            )
    return None


def _renamed(gang: GangSpec, values: Mapping[str, ReportAnswer]) -> Mapping[str, str]:
    """As of `former_nodes`, by what these nodes answered."""
    reports: dict[str, Report] = {}
    for node in (node for node in gang.machines if node.name in values):
        answer = values[node.name]
        if _names_another(node, gang, answer):  # else nothing has to be read for it, at each look of a guard
            reports.update((node.name, report) for report in _living(answer) if report.gang == gang.name)
    return former_nodes(gang, reports)


def _names_another(node: NodeSpec, gang: GangSpec, answer: ReportAnswer) -> bool:
    """Whether some report of this gang has another node's name."""
    mine = (raw for raw in answer.reports if isinstance(raw, dict) and raw.get("gang") == gang.name)
    return any(raw.get("node") != node.name for raw in mine)


def unreadable(node: str, raw: Mapping[str, Any], wrong: Unreadable) -> NodeError:
    """A report that this release can't read, as that node's failure: whose fault it is, and what to do."""
    theirs, gang = str(raw.get("agent_version") or ""), str(raw.get("gang") or "GANG")
    what, fix = "its agent's report can't be read", f"stop it with `l40s-deploy down {gang}`, then start it with `up`"
    if is_newer(theirs, __version__):
        what = f"its agent is {side(theirs, __version__)}, which can't read its report"
        fix = f"use l40s-deploy {theirs} or newer. `l40s-deploy down {gang}` of this version still stops it"
    return NodeError(f"{what}: {wrong}", where=node, fix=fix)


def interrupted(
    fleet: Fleet, gangs: Sequence[GangSpec], *, only: Collection[str] | None = None
) -> tuple[GangOperation, ...]:
    """What was begun on these gangs and no command works on any more. only: names of the nodes to ask."""
    return tuple(begun for begun, kept in _begun(fleet, gangs, only) if not any(_at_work(lock.held) for lock in kept))


def is_worked_on(fleet: Fleet, gang: GangSpec, only: Collection[str]) -> bool:
    """Whether some command holds this gang's lock. only: names of the nodes to ask."""
    return any(_at_work(lock.held) for lock in shown_locks(fleet, [gang], only).values.values())


def begun_on(fleet: Fleet, gangs: Sequence[GangSpec]) -> tuple[GangOperation, ...]:
    """Unfinished work on these gangs, whichever command holds them."""
    return tuple(begun for begun, _ in _begun(fleet, gangs, None))


def _begun(
    fleet: Fleet, gangs: Sequence[GangSpec], only: Collection[str] | None
) -> Iterator[tuple[GangOperation, Sequence[LockAnswer]]]:
    """With what each node says of the gang's lock. If a node does not answer, the records of the others count."""
    answers = shown_locks(fleet, gangs, only).values
    for gang in gangs:
        kept = [answers[node.name] for node in gang.nodes if node.name in answers]
        if begun := together(answer.begun for answer in kept):
            yield begun, kept


def shown_locks(fleet: Fleet, gangs: Iterable[GangSpec], only: Collection[str] | None = None) -> PerNode[LockAnswer]:
    """Who holds these gangs' locks, and what was begun on them."""
    gang_of = {node.name: gang.name for gang in gangs for node in gang.nodes if only is None or node.name in only}

    def one(session: Session) -> LockAnswer:
        return ask_lock(session, LockRequest(**request_keys(session.spec, gang_of[session.spec.name]), op="show"))

    return fleet.on_every(one, only=list(gang_of))


def renewed(shown: PerNode[LockAnswer]) -> dict[str, LockHolder]:
    """By node that answers, who holds a lock there and renews it."""
    holders = {node: answer.held for node, answer in shown.values.items() if answer.held is not None}
    return {node: holder for node, holder in holders.items() if not holder.stale}


def _at_work(held: LockHolder | None) -> bool:
    """A lock tells, unless it is no longer renewed, or its process on this machine is gone."""
    return held is not None and not held.stale and not has_ended(held)


def this_process() -> dict[str, Any]:
    """The keys of a lock that name us; '' and 0 where this system does not tell."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "start": processes.start_of(os.getpid()),
        "boot": processes.boot_id(),
        "pid_namespace": _pid_namespace(),
    }


def has_ended(holder: LockHolder) -> bool:
    """True if this process can see that the holder has ended; False if it runs, or can't be seen from here."""
    ours, theirs = this_process(), {"boot": holder.boot, "pid_namespace": holder.pid_namespace}
    if holder.pid is None or holder.start is None or any(not ours[key] or ours[key] != theirs[key] for key in theirs):
        return False
    return not processes.alive(holder.pid, holder.start)


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
