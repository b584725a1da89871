"""`history`: the nodes' records of a gang's runs, and of the commands that changed it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.gang.history import PastRun, past_runs
from orchestrator.gang.steps.router.host import gangs_and_router
from orchestrator.gang.steps.status.reports import refuse_elsewhere, see, where
from orchestrator.model.deadlines import ANSWER_S
from orchestrator.model.errors import DeployError
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.protocol.report import Report
from orchestrator.protocol.verbs import HistoryAnswer, HistoryRequest
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import ask
from orchestrator.remote.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class GangHistory:
    """One gang. audit: lines of the first node that answered; failures: nodes that did not."""

    gang: str
    runs: tuple[PastRun, ...]
    audit: tuple[Mapping[str, Any], ...]
    failures: Mapping[str, DeployError]


def history(inventory: Inventory, gangs: Sequence[str] = ()) -> tuple[GangHistory, ...]:
    """Ask every node of the chosen gangs, and the router's, once. Raises RunsElsewhere where nothing is kept because a
    gang has its state in another place."""
    found: list[GangHistory] = []
    for chosen in gangs_and_router(inventory, gangs):
        with Fleet([node for gang in chosen for node in gang.nodes]) as fleet:
            kept = [_kept(fleet, gang) for gang in chosen]
            if not any(one.runs for one in kept):
                refuse_elsewhere(see(fleet, chosen))
            found += kept
    return tuple(found)


def _kept(fleet: Fleet, gang: GangSpec) -> GangHistory:
    def one(session: Session) -> HistoryAnswer:
        request = HistoryRequest(**where(session.spec, gang.name), audit=True)
        return ask(session, "history", request, HistoryAnswer, deadline_s=ANSWER_S)

    answers = fleet.on_every(one, only=[node.name for node in gang.nodes])
    reports = {
        name: [report for report in map(Report.read, answer.reports) if isinstance(report, Report)]
        for name, answer in answers.values.items()
    }
    audit = {name: answer.audit for name, answer in answers.values.items()}
    return GangHistory(
        gang=gang.name,
        runs=past_runs(gang.name, reports, audit),
        audit=next(iter(audit.values()), ()),
        failures=answers.failures,
    )
