"""Verb `go`: an armed agent starts its engine."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

from orchestrator.node import files, processes, supervision
from orchestrator.node.agent import staged_files
from orchestrator.node.agent.run import staged_in
from orchestrator.node.failure import Failure
from orchestrator.node.requests import request_of
from orchestrator.node.verbs import lock, report
from orchestrator.protocol.report import AgentState, Report
from orchestrator.protocol.run_files import GoalOrder
from orchestrator.protocol.verbs import Because, GangRequest, StateAnswer

STARTED_S = 5.0


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """{"state": ...} once the agent has left *armed*. An agent that already runs is not changed."""
    asked = request_of(GangRequest, request)
    lock.refuse_a_former_holder(asked)
    folder = files.wanted_run(asked)
    staged_files.check(staged_in(folder))
    if not tell(folder, "run"):
        raise Failure("no-agent", "no agent is armed for this run", folder, "run `up` again")
    now = wait(folder, lambda one: one is None or one.state is not AgentState.ARMED or not one.alive, STARTED_S)
    if now is None:
        raise Failure("no-run", "the run's report is missing", folder, "run `up` again")
    return StateAnswer(state=now.state).as_json()


POLL_S = 0.02
SIGNALS = {"stop": signal.SIGTERM, "stop-now": signal.SIGUSR2}


def tell(folder: str, goal: str, because: Because | None = None) -> bool:
    """False if no agent is alive. goal: run, stop, stop-now; because: the failure that the run is ended for, if any."""
    pid, start = report.agent(folder)
    if not processes.alive(pid, start):
        return False
    number = SIGNALS.get(goal, signal.SIGUSR1)
    try:
        files.write_json(f"{folder}/goal.json", GoalOrder(goal=goal, because=because).as_json())
        number = signal.SIGUSR1
    except OSError:
        if goal not in SIGNALS:
            with files.state_failures(folder):
                raise
    if not supervision.send(pid, start, number) and processes.alive(pid, start):
        raise Failure(
            "no-rights",
            f"the agent (pid {pid}) belongs to another user and can't be signalled",
            folder,
            "log in as the user that ran `up`, or set `ansible_become: true`",
        )
    return True


def wait(folder: str, done: Callable[[Report | None], bool], deadline_s: float) -> Report | None:
    """The run's report once `done` is true of it, or the newest one after the deadline."""
    end = time.monotonic() + deadline_s
    while True:
        now = report.of_run(folder)
        if done(now) or time.monotonic() > end:
            return now
        time.sleep(POLL_S)
