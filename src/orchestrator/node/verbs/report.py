"""Verb `report`: what every gang's agent on this node last said, and whether it lives. Reads files only: fast."""

from __future__ import annotations

import time
from typing import Any

from orchestrator.node import files, processes
from orchestrator.node.engine import transport

LONGEST_WAIT_S = 10.0
STARTED = {"armed", "starting", "warming", "ready", "draining", "stopping"}


WAIT_POLL_S = 0.05


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """{"now": epoch, "reports": [...], "seen": mark}; with `gang` only that one's.

    wait_s, seen: answer as soon as the mark is another one than `seen`, or after so many seconds. The mark says where
    every run is, without its counters: whoever follows a start asks once a second and still hears at once.
    """
    state = files.state_dir(request)
    end = time.monotonic() + min(float(request.get("wait_s") or 0.0), LONGEST_WAIT_S)
    while True:
        names = [str(request["gang"])] if request.get("gang") else files.gangs(state)
        reports = [report for report in (of_gang(state, name) for name in names) if report]
        seen = _mark(reports)
        if seen != request.get("seen") or time.monotonic() >= end:
            return {"now": time.time(), "state_dir": state, "reports": reports, "seen": seen}
        time.sleep(WAIT_POLL_S)


def _mark(reports: list[dict[str, Any]]) -> str:
    return ";".join(
        f"{report.get('run_id')} {report.get('state')} {(report.get('phase') or {}).get('name')} {report.get('alive')} "
        f"{report.get('service_state')} {','.join(report.get('silent') or ())}"
        for report in reports
    )


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
