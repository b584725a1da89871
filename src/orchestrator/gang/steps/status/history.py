"""What the nodes have kept of gangs: `history`, the runs and the commands that changed them; `why`, the last failure;
`logs --around-failure`, the lines around it; `version`, the releases of their agents and the stacks that they serve."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.gang.history import FailureVerdict, Kept, PastRun, last_verdict, of_now, past_runs, runs_of
from orchestrator.gang.overview import cause_json
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.status.health import with_health
from orchestrator.gang.steps.status.live import run_events
from orchestrator.gang.steps.status.reports import ask_report, own_report, refuse_elsewhere, request_keys, see
from orchestrator.gang.timeline import TimelineEvent
from orchestrator.gang.view import Answer, GangView
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.deadlines import ANSWER_S, EXCERPT_S
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.errors import DeployError, InputError, NodeError
from orchestrator.protocol.report import Report
from orchestrator.protocol.verbs import ExcerptAnswer, ExcerptRequest, HistoryAnswer, HistoryRequest
from orchestrator.records.gates import kept_gate
from orchestrator.remote.fleet import Fleet, StragglerWait
from orchestrator.remote.node_app import ask
from orchestrator.remote.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class GangHistory:
    """One gang. audit: lines of the first node that answered; failures: nodes that did not."""

    gang: str
    runs: tuple[PastRun, ...]
    audit: tuple[Mapping[str, Any], ...]
    failures: Mapping[str, DeployError]


def history(operation: Operation, gangs: Sequence[str] = ()) -> tuple[GangHistory, ...]:
    """Ask every node of the chosen gangs, and the router's, once. Raises RunsElsewhere where nothing is kept because a
    gang has its state in another place."""
    histories: list[GangHistory] = []
    for fleet, chosen in operation.parts(gangs):
        answers = _histories(fleet, chosen, audit=True, older=True)
        kept = [_kept(gang, answers) for gang in chosen]
        if not any(past.runs for past in kept):
            refuse_elsewhere(see(fleet, chosen))
        histories += kept
    return tuple(histories)


def _kept(gang: GangSpec, asked: PerNode[HistoryAnswer]) -> GangHistory:
    answers = asked.ordered([node.name for node in gang.nodes])
    audit = {name: answer.audit for name, answer in answers.values.items()}
    runs = past_runs(gang.name, {name: reports_of(answer) for name, answer in answers.values.items()}, audit)
    return GangHistory(
        gang=gang.name,
        runs=tuple(replace(run, gate=kept_gate(run.run_id)) for run in runs),
        audit=next(iter(audit.values()), ()),
        failures=answers.failures,
    )


def ask_history(
    fleet: Fleet, gang: GangSpec, *, older: bool = False, patience: StragglerWait | None = None
) -> PerNode[HistoryAnswer]:
    """What each node of a gang has kept of its runs; with older, of the last 30 days."""
    return _histories(fleet, [gang], older=older, patience=patience)


def _histories(
    fleet: Fleet,
    gangs: Sequence[GangSpec],
    *,
    audit: bool = False,
    older: bool = False,
    patience: StragglerWait | None = None,
) -> PerNode[HistoryAnswer]:
    """The same of every node of several gangs, at the same time; with audit, of the commands that changed them."""
    gang_of = {node.name: gang.name for gang in gangs for node in gang.nodes}

    def one(session: Session) -> HistoryAnswer:
        request = HistoryRequest(**request_keys(session.spec, gang_of[session.spec.name]), audit=audit, older=older)
        return ask(session, "history", request, HistoryAnswer, deadline_s=ANSWER_S)

    return fleet.on_every(one, only=list(gang_of), patience=patience)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One gang. verdict: None where no kept run failed. events: of that run on all nodes, where asked for.
    now: as it is at this moment; None where a run was named. only_looks: who asks may
    change nothing, as a node tells (`l40s_viewers`)."""

    gang: str
    verdict: FailureVerdict | None
    now: GangView | None = None
    only_looks: bool = False
    events: tuple[TimelineEvent, ...] = ()
    failures: Mapping[str, DeployError]


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """Log lines of the node that failed first. marked: which of them shows the failure, -1 for none of them."""

    verdict: FailureVerdict
    lines: tuple[str, ...]
    marked: int


def why(
    operation: Operation, gangs: tuple[str, ...] = (), *, events: bool = False, run: str = ""
) -> tuple[Explanation, ...]:
    """Ask every node of the chosen gangs, and the router's, once, and once more for the events of the failed run.

    run: of this run alone, of the gang that had it. Raises InputError where none has.
    """
    accounts: list[Explanation] = []
    for fleet, chosen in operation.parts(gangs):
        accounts += _accounts(fleet, chosen, events=events, run=run)
    if not run:
        accounts = _with_health(operation.inventory, accounts)
    if run and not accounts:
        fix = "see the ids of the runs that are kept with `l40s-deploy history`"
        raise InputError(f"no run {run!r} is kept", where=f"{operation.inventory.path}: --run", fix=fix)
    return tuple(accounts)


def _with_health(inventory: Inventory, accounts: Sequence[Explanation]) -> list[Explanation]:
    """With what the doctor says of the gangs that serve, as `status` has it."""
    views = [account.now for account in accounts if account.now is not None]
    known = {view.name: view for view in with_health(inventory.path, inventory.gangs, views)}
    return [replace(account, now=known.get(account.gang, account.now)) for account in accounts]


def around_failure(
    operation: Operation, gangs: tuple[str, ...], *, before: int, after: int, run: str = ""
) -> tuple[Excerpt, ...]:
    """The log of the node that failed first, around the line that shows it; an excerpt a gang that has failed.
    run: of this run alone.

    Raises InputError where none has, and what the node's answer raises.
    """
    excerpts: list[Excerpt] = []
    for fleet, chosen in operation.parts(gangs):
        accounts = _accounts(fleet, chosen, events=False, run=run)
        nodes = {node.name for gang in chosen for node in gang.nodes}
        excerpts += [_excerpt(fleet, nodes, account.verdict, before, after) for account in accounts if account.verdict]
    if not excerpts:
        what = f"run {run} has not failed, or is not kept" if run else "no recorded run has failed"
        raise InputError(what, where=operation.inventory.path, fix="see the newest log lines with `l40s-deploy logs`")
    return tuple(excerpts)


def _accounts(fleet: Fleet, gangs: Sequence[GangSpec], *, events: bool, run: str = "") -> list[Explanation]:
    """Raises RunsElsewhere where nothing is kept because a gang has its state in another place."""
    answers = _histories(fleet, gangs, older=bool(run))
    accounts_or_none = (_account(fleet, gang, answers, events=events, run=run) for gang in gangs)
    accounts = [account for account in accounts_or_none if account is not None]
    if not run and not any(account.verdict for account in accounts):
        refuse_elsewhere(see(fleet, gangs))
    return accounts


def _account(
    fleet: Fleet, gang: GangSpec, asked: PerNode[HistoryAnswer], *, events: bool, run: str = ""
) -> Explanation | None:
    """None for a gang that has not had this run."""
    answers = asked.ordered([node.name for node in gang.nodes])
    kept: dict[str, Kept] = {
        node.name: answers.failures.get(node.name) or reports_of(answers.values[node.name]) for node in gang.nodes
    }
    if run and run not in runs_of(kept):
        return None
    verdict = last_verdict(gang.name, kept, run)
    return Explanation(
        gang=gang.name,
        verdict=verdict,
        now=None if run else of_now(gang.name, kept),
        only_looks=any(answer.only_looks for answer in answers.values.values()),
        events=run_events(fleet, gang, verdict.run_id) if events and verdict else (),
        failures=answers.failures,
    )


def reports_of(answer: HistoryAnswer) -> list[Report]:
    """A report that can't be read tells nothing; the others still do."""
    return [report for report in map(Report.read, answer.reports) if isinstance(report, Report)]


def hang_looks(operation: Operation, gangs: Sequence[str] = ()) -> list[dict[str, Any]]:
    """What nodes gathered of hangs, of every run that is kept, as they wrote it."""
    looks: list[dict[str, Any]] = []
    for fleet, chosen in operation.parts(gangs):
        for gang in chosen:
            kept = [report for report in _kept_reports(fleet, gang) if report.hang is not None]
            looks += [
                {"gang": gang.name, "run_id": past.run_id, "look": past.hang and past.hang.as_json()} for past in kept
            ]
    return looks


def _kept_reports(fleet: Fleet, gang: GangSpec) -> list[Report]:
    answers = ask_history(fleet, gang).values
    return [report for answer in answers.values() for report in reports_of(answer)]


def _excerpt(fleet: Fleet, nodes: Collection[str], verdict: FailureVerdict, before: int, after: int) -> Excerpt:
    """nodes: names of those that may have failed; a report's word on another one is not followed."""

    def one(session: Session) -> ExcerptAnswer:
        request = ExcerptRequest(
            **request_keys(session.spec, verdict.gang),
            run_id=verdict.run_id,
            lines=verdict.cause.lines,
            before=before,
            after=after,
        )
        return ask(session, "excerpt", request, ExcerptAnswer, deadline_s=EXCERPT_S)

    node = verdict.cause.node
    if node not in nodes:
        raise NodeError(
            f"the failure is reported on {node!r}, which is not a node of this gang",
            where=f"gang {verdict.gang}",
            fix="see the reports of all nodes with `l40s-deploy why --all`",
        )
    answer = fleet.on_every(one, only=[node]).all()[node]
    return Excerpt(verdict=verdict, lines=answer.lines, marked=answer.marked)


_OF_A_VERDICT = {"run_id": "", "plan_id": "", "model": "", "stack": "", "newest": None, "ago_s": None}
"""What `why --json` says of a failure, and where there is none."""


def why_json(accounts: Sequence[Explanation]) -> dict[str, Any]:
    """The document of `why --json`."""
    return {"gangs": [_json(account) for account in accounts]}


def _json(account: Explanation) -> dict[str, Any]:
    verdict, now = account.verdict, account.now
    return {
        "name": account.gang,
        "state": now.state.value if now else None,
        "findings": [finding.as_json() for finding in now.findings] if now else [],
        "trouble": cause_json(now.cause) if now and now.state.was_ready else None,
        **{name: getattr(verdict, name, nothing) for name, nothing in _OF_A_VERDICT.items()},
        "cause": verdict and cause_json(verdict.cause),
        "secondary": [cause_json(cause) for cause in verdict.secondary] if verdict else [],
        "events": [event.as_json() for event in account.events],
        "unreachable": sorted(account.failures),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVersion:
    """Of one node: what its agent was started with; empty if nothing was ever started. error: why it is unknown."""

    node: str
    gang: str
    agent: str = ""
    stack: str = ""
    model: str = ""
    state: str = ""
    error: DeployError | None = None

    def as_json(self) -> dict[str, Any]:
        """nodes[] of `version --json`."""
        versions = {name: getattr(self, name) or None for name in ("agent", "stack", "model", "state")}
        return {"node": self.node, "gang": self.gang, **versions, "error": self.error and self.error.as_json()}


def versions(operation: Operation, gangs: tuple[str, ...] = ()) -> tuple[NodeVersion, ...]:
    """Ask every node of the chosen gangs once."""
    nodes = [node for gang in chosen_gangs(operation.inventory, gangs) for node in gang.nodes]
    answers = operation.fleet.on_every(ask_report, only=[node.name for node in nodes])
    return tuple(
        _version(node, answers.failures.get(node.name) or own_report(node, node.gang, answers.values[node.name]))
        for node in nodes
    )


def _version(node: NodeSpec, answer: Answer) -> NodeVersion:
    if not isinstance(answer, Report):
        return NodeVersion(node=node.name, gang=node.gang, state="absent" if answer is None else "", error=answer)
    return NodeVersion(
        node=node.name,
        gang=node.gang,
        agent=answer.agent_version,
        stack=answer.stack,
        model=answer.model,
        state=answer.word,
    )
