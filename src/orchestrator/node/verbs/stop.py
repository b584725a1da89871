"""Verb `stop`: end this node's part of a gang; works with a dead agent and with nothing there at all."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import Any

from orchestrator.node import files, processes
from orchestrator.node.agent import causes, goal
from orchestrator.node.agent.run import AGENT_FILE, REPORT_FILE, Run
from orchestrator.node.engine import containers
from orchestrator.node.failure import Failure
from orchestrator.node.verbs import report
from orchestrator.node.verbs.report import left_over

KILL_FOR_S = 10.0
POLL_S = 0.05
STUCK_S = 15.0
"""An agent writes its report every second, and ends within seconds when told to end at once."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """{"state", "alive", "left_behind", "held"}; docs/agent.md.

    now=true ends without draining; clear=true forgets a failed run's state; because={"node", "text", "fix"} is the
    failure that the run is ended for, where none of its agents can have seen it; what was only staged fails by it.
    """
    state = files.state_dir(request)
    folder = files.current_run(state, request.get("gang"))
    before = report.of_run(folder) if folder else {}
    if folder is None or not before:
        return {"state": "absent", "alive": False, "left_behind": [], "held": []}
    deadline_s = float(request.get("deadline_s") or 120.0)
    told = goal.tell(folder, "stop-now" if request.get("now") else "stop", request.get("because"))
    if told:
        _await_end(folder, deadline_s, now=bool(request.get("now")))
    left = _end_orphans(folder) if not report.of_run(folder).get("alive") else []
    after = report.of_run(folder)
    if not after.get("alive"):
        after = _settle(folder, after, request.get("because"), clear=bool(request.get("clear")))
    return {
        "state": str(after.get("state")),
        "alive": bool(after.get("alive")),
        "left_behind": sorted({*left, *_living(after.get("left_behind") or [])}),
        "held": list(after.get("held") or []) if told else [],
    }


def _await_end(folder: str, deadline_s: float, *, now: bool) -> None:
    """An agent that can't obey (a signal has stopped it; told to end at once, it shows no life) is killed: its guardian
    ends what it holds."""
    began = time.monotonic()

    def stuck(report: dict[str, Any]) -> bool:
        silent_s = report.get("now", 0.0) - report.get("updated_at", 0.0)
        agent = int(files.read_json(f"{folder}/{AGENT_FILE}").get("pid", 0))
        return processes.stopped(agent) or (now and min(silent_s, time.monotonic() - began) > STUCK_S)

    told = goal.wait(folder, lambda report: not report.get("alive") or stuck(report), deadline_s)
    if told.get("alive") and stuck(told):
        agent = files.read_json(f"{folder}/{AGENT_FILE}")
        processes.send(int(agent.get("pid", 0)), int(agent.get("start", 0)), signal.SIGKILL)
        goal.wait(folder, lambda report: not report.get("alive") and not left_over(folder), KILL_FOR_S)


def _end_orphans(folder: str) -> list[int]:
    """What a killed agent may have left, if its guardian was killed too; ours by id and start time."""
    with contextlib.suppress(Failure):
        containers.remove(Run.read(folder))
    end = time.monotonic() + KILL_FOR_S
    while True:
        left = left_over(folder)
        if not left or time.monotonic() > end:
            return [pid for pid, _ in left]
        for pid, start in left:
            processes.send(pid, start, signal.SIGKILL)
        time.sleep(POLL_S)


def _settle(folder: str, after: dict[str, Any], because: object, *, clear: bool) -> dict[str, Any]:
    """Nothing runs any more: an agent that died could not write so itself."""
    settled = {name: value for name, value in after.items() if name not in ("alive", "now")}
    if after["state"] == "staged" and not clear and isinstance(because, dict):
        settled["state"] = "failed"
        settled["cause"] = causes.told(because, time.time())
    elif clear or after["state"] == "staged":
        settled["state"] = "stopped"
    elif after["state"] in report.STARTED:
        settled["state"] = "failed"
        settled["cause"] = settled.get("cause") or causes.make(
            settled["node"],
            "the agent was killed, or the node rebooted; its engine ended with it",
            settled.get("updated_at", 0.0),
            fix="look at `journalctl -k` and `last reboot` on that node",
        )
    if settled["state"] != after["state"]:
        with files.told(folder):
            files.write_json(f"{folder}/{REPORT_FILE}", settled)
    return settled


def _living(pids: list[int]) -> list[int]:
    found = (processes.read(int(pid)) for pid in pids)
    return [process.pid for process in found if process is not None and not process.gone]
