"""Verbs `go` and `stop`: orders to a run's agent.

`stop` ends this node's part of a gang with a dead agent too, and with nothing there at all.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from orchestrator.node import files, processes, supervision, viewers
from orchestrator.node.agent import staged_run
from orchestrator.node.agent.ending import MEMORY_FREE_S
from orchestrator.node.agent.staged_run import staged_in
from orchestrator.node.engine import engine_container, scratch
from orchestrator.node.engine.gpus import GpuMemory
from orchestrator.node.files import GOAL_FILE, REPORT_FILE
from orchestrator.node.requests import request_of
from orchestrator.node.verbs import lock, report, without_files
from orchestrator.node.verbs.report import left_over
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.report import AgentState, Cause, Report
from orchestrator.protocol.run_files import GoalOrder
from orchestrator.protocol.verbs import GangRequest, StateAnswer, StopAnswer, StopRequest

STARTED_S = 5.0


def go(request: dict[str, Any]) -> dict[str, Any]:
    """{"state": ...} once the agent has left *armed*. An agent that already runs is not changed."""
    asked = request_of(GangRequest, request)
    lock.refuse_a_former_holder(asked)
    folder = files.wanted_run(asked)
    staged_run.script_of(staged_in(folder))
    if not tell(folder, "run"):
        raise DeployError("no agent is armed for this run", where=folder, fix="run `up` again", kind="no-agent")
    now = wait(folder, lambda last: last is None or last.state is not AgentState.ARMED or not last.alive, STARTED_S)
    if now is None:
        raise DeployError("the run's report is missing", where=folder, fix="run `up` again", kind="no-run")
    return StateAnswer(state=now.state).as_json()


SIGNALS = {"stop": signal.SIGTERM, "stop-now": signal.SIGUSR2}


def tell(folder: str, goal: str, because: Cause | None = None, *, ordered: bool = False) -> bool:
    """False if no agent is alive. goal: run, stop, stop-now; because: the failure that the run is ended for, if any;
    ordered: a person ends it, for none."""
    pid, start = report.agent(folder)
    if not processes.alive(pid, start):
        return False
    number = SIGNALS.get(goal, signal.SIGUSR1)
    try:
        _remember(folder, GoalOrder(goal=goal, because=because, ordered=ordered))
        number = signal.SIGUSR1
    except OSError:
        if goal not in SIGNALS:
            with files.state_failures(folder):
                raise
    if not supervision.send(pid, start, number) and processes.alive(pid, start):
        what = f"the agent (pid {pid}) belongs to another user and can't be signalled"
        raise DeployError(
            what, where=folder, fix="log in as the user that ran `up`, or set `ansible_become: true`", kind="no-rights"
        )
    return True


def _remember(folder: str, order: GoalOrder) -> None:
    files.write_json_in_any_case(f"{folder}/{GOAL_FILE}", order.as_json())


def wait(folder: str, done: Callable[[Report | None], bool], deadline_s: float) -> Report | None:
    """The run's report once `done` is true of it, or the newest one after the deadline."""
    end = time.monotonic() + deadline_s
    while not done(now := report.of_run(folder)) and time.monotonic() <= end:
        time.sleep(POLL_S)
    return now


KILL_FOR_S = 10.0
POLL_S = 0.02
STUCK_S = 15.0
"""An agent writes its report every second, and exits within seconds when ordered to stop at once."""


def stop(request: dict[str, Any]) -> dict[str, Any]:
    """{"state", "alive", "left_behind", "held"}; docs/agent.md.

    now=true ends without draining; clear=true forgets a failed run's state; ordered=true: a person has ended it, and no
    guard starts it; because={"node", "text", "fix"} is the
    failure that the run is ended for, where none of its agents can have seen it; what was only staged fails by it.
    run_id: end that run alone; where another one was staged last, or none, nothing is touched.
    """
    asked = request_of(StopRequest, request)
    state = files.state_dir(asked.state_dir)
    viewers.refuse_changes(state)
    lock.refuse_a_former_holder(asked, to_end=True)
    if asked.run_id and os.path.basename(files.current_run(state, asked.gang) or "") != asked.run_id:
        return StopAnswer(state="absent").as_json()
    unfiled = without_files.end(state, asked)
    if unfiled.clean and (folder := files.current_run(state, asked.gang)) and (before := report.of_run(folder)):
        return _stop(folder, before, asked).as_json()
    return unfiled.as_json()


def _stop(folder: str, before: Report, asked: StopRequest) -> StopAnswer:
    goal = "stop-now" if asked.now else "stop"
    last = tell(folder, goal, asked.because, ordered=asked.ordered)
    if asked.ordered and not last:
        with contextlib.suppress(OSError):  # a full disk; the other nodes know it
            _remember(folder, GoalOrder(goal=goal, ordered=True))
    if last:
        _await_end(folder, asked.deadline_s, now=asked.now)
    left = _end_orphans(folder) if not processes.alive(*report.agent(folder)) else []
    after = report.of_run(folder) or before
    held = after.held if last else ()
    if not after.alive and last and not after.state.over:
        held = _await_memory(folder)  # its agent was killed, and could not
    if not after.alive:
        _clean_up(folder)
        after = _settle(folder, after, asked.because, clear=asked.clear)
    left_behind = tuple(sorted({*left, *filter(processes.lives, after.left_behind)}))
    return StopAnswer(state=after.state.value, alive=after.alive, left_behind=left_behind, held=held)


def _clean_up(folder: str) -> None:
    """What an agent that was killed could not remove."""
    scratch.remove(folder)
    with contextlib.suppress(DeployError):
        if (run := staged_in(folder)).container is None:
            scratch.forget_named(run)


def _await_end(folder: str, deadline_s: float, *, now: bool) -> None:
    """An agent that can't obey (stopped by a signal, or no sign of life after an order to stop at once) is killed: its
    guardian ends what it holds."""
    began, agent = time.monotonic(), report.agent(folder)

    def stuck(last: Report | None) -> bool:
        if not processes.alive(*agent):
            return False
        silent_s = last.now - last.updated_at if last else STUCK_S
        return supervision.stopped(agent[0]) or (now and min(silent_s, time.monotonic() - began) > STUCK_S)

    ended = wait(folder, lambda last: not processes.alive(*agent) or stuck(last), deadline_s)
    if stuck(ended):
        supervision.send(*agent, signal.SIGKILL)
        wait(folder, lambda _: not processes.alive(*agent) and not left_over(folder), KILL_FOR_S)


def _end_orphans(folder: str) -> list[int]:
    """What a killed agent may have left, if its guardian was killed too; ours by id and start time."""
    with contextlib.suppress(DeployError):
        engine_container.remove(staged_in(folder))
    end = time.monotonic() + KILL_FOR_S
    while (left := left_over(folder)) and time.monotonic() <= end:
        for pid, start in left:
            supervision.send(pid, start, signal.SIGKILL)
        time.sleep(POLL_S)
    return [pid for pid, _ in left]


def _await_memory(folder: str) -> tuple[str, ...]:
    """What is in use on the run's GPUs once they had the time to become free."""
    try:
        run = staged_in(folder)
    except DeployError:
        return ()
    if run.device != "cuda" or not run.gpus:
        return ()
    with contextlib.closing(GpuMemory(run.gpus)) as memory:
        return tuple(memory.await_free(MEMORY_FREE_S))


def _settle(folder: str, after: Report, because: Cause | None, *, clear: bool) -> Report:
    """Nothing runs any more: an agent that died could not write so itself."""
    staged = after.state is AgentState.STAGED
    if clear or (staged and because is None):
        settled = replace(after, state=AgentState.STOPPED)
    elif staged and because is not None:
        settled = replace(after, state=AgentState.FAILED, cause=replace(because, at=time.time()))
    elif after.state.over:
        return after
    else:
        text = "the agent was killed, or the node rebooted; its engine ended with it"
        fix = "check `journalctl -k` and `last reboot` on that node"
        died = after.cause or Cause(node=after.node, text=text, fix=fix, at=after.updated_at)
        settled = replace(after, state=AgentState.FAILED, cause=died)
    if settled.state is not after.state:
        with files.state_failures(folder):
            files.write_json_in_any_case(f"{folder}/{REPORT_FILE}", settled.as_json())
    return settled
