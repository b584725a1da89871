"""Verb `report`: what every gang's agent on this node last said, and whether it lives. Reads files only: fast."""

from __future__ import annotations

import time
from typing import Any

from orchestrator.node import files, processes, transport

STARTED = {"armed", "starting", "warming", "ready", "draining", "stopping"}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """{"now": epoch, "reports": [...]}; with `gang` only that one's."""
    state = files.state_dir(request)
    names = [str(request["gang"])] if request.get("gang") else files.gangs(state)
    reports = [report for report in (of_gang(state, name) for name in names) if report]
    return {"now": time.time(), "state_dir": state, "reports": reports}


def of_gang(state: str, gang: str) -> dict[str, Any]:
    """The current run's report with `alive` and `now` added; empty where nothing was ever staged."""
    folder = files.current_run(state, gang)
    return of_run(folder) if folder else {}


def of_run(folder: str) -> dict[str, Any]:
    """One run's report; ranks of a dead agent are looked up, since its word about them is old."""
    report = files.read_json(f"{folder}/report.json")
    if not report:
        return {}
    agent = files.read_json(f"{folder}/agent.json")
    report["alive"] = processes.alive(int(agent.get("pid", 0)), int(agent.get("start", 0)))
    report["now"] = time.time()
    report["transport"] = transport.noted(folder)
    if not report["alive"] and report.get("state") in STARTED:
        report["rebooted"] = bool(report.get("boot_id")) and report["boot_id"] != processes.boot_id()
        _look_up_ranks(folder, report)
    return report


def _look_up_ranks(folder: str, report: dict[str, Any]) -> None:
    living = {pid for pid, start in left_over(folder)}
    for rank in report.get("ranks") or ():
        if rank.get("pid"):
            rank["state"] = "alive" if rank["pid"] in living else "dead"


def left_over(folder: str) -> list[tuple[int, int]]:
    """(pid, start) of the run's own processes that still live, agent and guardian not among them."""
    known = files.read_json(f"{folder}/processes.json").get("processes") or []
    return [(int(pid), int(start)) for pid, start in known if processes.alive(int(pid), int(start))]
