"""Verb `go`: an armed agent starts its engine."""

from __future__ import annotations

from typing import Any

from orchestrator.node import files
from orchestrator.node.agent import goal, staged_files
from orchestrator.node.agent.run import staged_in
from orchestrator.node.failure import Failure
from orchestrator.node.requests import request_of
from orchestrator.node.verbs import lock
from orchestrator.protocol.report import AgentState
from orchestrator.protocol.verbs import GangRequest, StateAnswer

STARTED_S = 5.0


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """{"state": ...} once the agent has left *armed*. An agent that already runs is not changed."""
    asked = request_of(GangRequest, request)
    lock.refuse_a_former_holder(asked)
    folder = files.wanted_run(asked)
    staged_files.check(staged_in(folder))
    if not goal.tell(folder, "run"):
        raise Failure("no-agent", "no agent is armed for this run", folder, "run `up` again")
    report = goal.wait(folder, lambda now: now is None or now.state is not AgentState.ARMED or not now.alive, STARTED_S)
    if report is None:
        raise Failure("no-run", "the run's report is missing", folder, "run `up` again")
    return StateAnswer(state=report.state).as_json()
