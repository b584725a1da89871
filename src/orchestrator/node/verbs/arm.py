"""Verb `arm`: start the agent of a staged run, and return once it is armed or has reported why not.

Its checks come first; then it reaches for the leader's agent. That is waited for a moment only: the reports show it.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time
from typing import Any

from orchestrator.node import dispatch, files, processes, supervision
from orchestrator.node.agent import staged_run
from orchestrator.node.agent.staged_run import Run, staged_in
from orchestrator.node.files import AGENT_LOG, GOAL_FILE
from orchestrator.node.requests import request_of
from orchestrator.node.verbs import lock, report
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.report import AgentState, Report, as_one
from orchestrator.protocol.verbs import ArmRequest, StateAnswer

SYSTEMD = pathlib.Path("/run/systemd/system")
START_S = 10.0
POLL_S = 0.02
REACH_S = 2.0
"""For the leader's agent, whose own checks may take longer than ours."""
_INHERITED = ("PATH", "LD_LIBRARY_PATH", "LANG", "HOME", "L40S_LAB_NVML", "L40S_LAB_GPU_CLAIMS")
PROPERTIES = (
    "KillMode=control-group",
    "LimitMEMLOCK=infinity",
    "LimitNOFILE=1048576",
    "TasksMax=infinity",
    "TimeoutStopSec=90",
)
"""Of the transient unit; it is not started at boot, because a gang starts completely or not at all."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """{"state": "armed"}, or "staged" where the checks have passed and the leader's agent is not reached yet; a
    refusal is raised as it was told."""
    asked = request_of(ArmRequest, request)
    lock.refuse_a_former_holder(asked)
    folder = files.wanted_run(asked)
    with files.state_failures(folder):
        if not processes.alive(*report.agent(folder)):
            run = staged_in(folder)
            staged_run.script_of(run)
            _start(run)
        return _wait(folder, asked.deadline_s)


def _start(run: Run) -> None:
    files.remove(run.path(GOAL_FILE))
    command = dispatch.command("agent", run.folder, at=dispatch.copy_beside(run.folder))
    if os.geteuid() == 0 and SYSTEMD.is_dir():
        _start_unit(run, command)
    else:
        _start_daemon(run, command)


def _start_unit(run: Run, command: list[str]) -> None:
    properties = [*PROPERTIES, f"StandardOutput=append:{run.path(AGENT_LOG)}", "StandardError=inherit"]
    words = ["systemd-run", "--quiet", "--collect", f"--unit={run.unit_name}"]
    words += [f"--description=l40s-deploy agent of {run.gang} on {run.node}"]
    words += [f"--property={name}" for name in properties]
    words += [f"--setenv={name}={os.environ[name]}" for name in _INHERITED if name in os.environ]
    try:
        done = subprocess.run(
            [*words, "--", *command], capture_output=True, text=True, errors="replace", timeout=START_S, check=False
        )
        reason = (done.stderr.strip() or f"ended with status {done.returncode}") if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    if reason:
        raise DeployError(
            f"systemd-run: {reason}", where="systemd", fix="check `systemctl status` on the node", kind="no-unit"
        )


def _start_daemon(run: Run, command: list[str]) -> None:
    """Own session, no controlling terminal, standard streams of its own: it survives the SSH connection."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    status = 1
    try:
        os.setsid()
        if os.fork() == 0:
            log = os.open(run.path(AGENT_LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            null = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((null, 0), (log, 1), (log, 2)):
                os.dup2(source, target)
            os.chdir("/")
            os.execv(command[0], command)  # noqa: S606 - this application itself
        status = 0
    finally:
        os._exit(status)


def _refuse_lifeless(folder: str, *, alive: bool) -> None:
    """Raises where the agent is stopped or not there, long after its start."""
    if supervision.stopped(report.agent(folder)[0]):
        raise DeployError("the agent was stopped by a signal", where=folder, fix="run `up` again", kind="agent-stopped")
    if not alive:
        what, log = f"the agent did not start: {_last_words(folder)}", f"{folder}/{AGENT_LOG}"
        raise DeployError(what, where=log, fix="read that log on the node", kind="no-agent")


def _wait(folder: str, deadline_s: float) -> dict[str, Any]:
    begin, checked = time.monotonic(), 0.0
    while (waited_s := time.monotonic() - begin) < deadline_s:
        now = report.of_run(folder)
        if now is not None and now.state.over:
            raise _refusal(now, folder)
        alive = now is not None and now.alive
        if now is not None and alive and now.checked:
            checked = checked or time.monotonic()
            if now.state is not AgentState.STAGED or time.monotonic() - checked > REACH_S:
                return StateAnswer(state=now.state).as_json()
        if waited_s > START_S:
            _refuse_lifeless(folder, alive=alive)
        time.sleep(POLL_S)
    what = f"the checks did not finish within {deadline_s:.0f} s"
    raise DeployError(what, where=folder, fix=f"read {AGENT_LOG} in that directory on the node", kind="not-checked")


def _refusal(ended: Report, folder: str) -> DeployError:
    if not ended.refusals:
        cause = ended.cause
        words = cause.text if cause else "; ".join(ended.remarks) or "the agent ended"
        return DeployError(words, where=folder, fix=cause.fix if cause else "", kind="not-armed")
    return as_one(ended.refusals)


def _last_words(folder: str) -> str:
    lines = (files.read_text(f"{folder}/{AGENT_LOG}") or "").strip().splitlines()
    return lines[-1] if lines else "it left no message"
