"""Ask every node what its agents say, and see the gangs in it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from orchestrator.gang.view import Answer, GangView, view
from orchestrator.model.errors import DeployError, NodeError
from orchestrator.model.inventory import GangSpec, NodeSpec
from orchestrator.model.report import Cause, NodeReport
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import call
from orchestrator.remote.session import Session

ANSWER_S = 15.0
WAIT_S = 0.2
OLD_S = 1.0
"""Who answered so long before another node was given up is asked again: what it said of that one is old."""


def where(node: NodeSpec, gang: str | None = None) -> dict[str, Any]:
    """The keys that every request to a gang verb begins with."""
    return {"state_dir": node.state_dir, "gang": gang or node.gang}


def because(cause: Cause | None) -> dict[str, Any]:
    """The key that tells an order to stop which failure the gang is ended for; {} for none."""
    return {} if cause is None else {"because": {"node": cause.node, "text": cause.text, "fix": cause.fix}}


def see(fleet: Fleet, gangs: Iterable[GangSpec], *, seen: dict[str, str] | None = None) -> tuple[GangView, ...]:
    """Every gang as it is now, one question a node.

    seen: what each node said last, kept here from call to call: a node then answers when something has changed, or
    after WAIT_S. One node's news waits for the others' answers, so that is short.
    """
    chosen = tuple(gangs)
    began = time.monotonic()
    told = fleet.on_every(partial(_ask, seen=seen), only=[node.name for gang in chosen for node in gang.nodes])
    values, failures = dict(told.values), dict(told.failures)
    if failures and values and time.monotonic() - began > OLD_S + WAIT_S:
        again = fleet.on_every(_ask, only=list(values))
        values, failures = dict(again.values), {**failures, **again.failures}
    return tuple(view(gang.name, _answers(gang, values, failures)) for gang in chosen)


def _ask(session: Session, seen: dict[str, str] | None = None) -> dict[str, Any]:
    name = session.spec.name
    waiting = {} if seen is None else {"seen": seen.get(name), "wait_s": WAIT_S}
    answer = call(session, "report", {**where(session.spec), **waiting}, deadline_s=ANSWER_S)
    if not isinstance(answer, dict):
        return {}
    if seen is not None:
        seen[name] = str(answer.get("seen"))
    return answer


def _answers(
    gang: GangSpec, values: Mapping[str, dict[str, Any]], failures: Mapping[str, DeployError]
) -> dict[str, Answer]:
    return {
        node.name: failures[node.name] if node.name in failures else _report(node, gang.name, values[node.name])
        for node in gang.nodes
    }


def _report(node: NodeSpec, gang: str, answer: Mapping[str, Any]) -> Answer:
    for raw in answer.get("reports") or ():
        if isinstance(raw, dict) and raw.get("gang") == gang and raw.get("node") == node.name:
            try:
                return NodeReport.from_json(raw)
            except ValueError as wrong:
                return NodeError(
                    f"its agent's report can't be read: {wrong}",
                    where=node.name,
                    fix="the agent may be newer than this l40s-deploy; `l40s-deploy down` still ends it",
                )
    return None
