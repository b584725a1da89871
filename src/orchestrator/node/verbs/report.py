"""Verbs `report` and `history`: what every gang's agent wrote down on this node, and whether it is alive.

They read only files.
"""

from __future__ import annotations

import glob
import os
import time
from dataclasses import replace
from typing import Any

from orchestrator.node import files, others, processes, viewers
from orchestrator.node.agent import clock
from orchestrator.node.bounded_log import predecessor
from orchestrator.node.files import (
    AGENT_FILE,
    EVENTS_LOG,
    GOAL_FILE,
    HANG_FILE,
    PAST_FILE,
    PROCESSES_FILE,
    REPORT_FILE,
    RUN_FILE,
    TRANSPORT_FILE,
)
from orchestrator.node.others import ShownAgent
from orchestrator.node.requests import request_of
from orchestrator.node.verbs.lock import AUDIT
from orchestrator.protocol.hang import HangLook
from orchestrator.protocol.message import Unreadable, parsed
from orchestrator.protocol.report import AgentState, RankState, Report, TransportLines
from orchestrator.protocol.run_files import AgentProcess, GoalOrder, KnownProcesses
from orchestrator.protocol.verbs import HistoryAnswer, HistoryRequest, OtherAgent, ReportAnswer, ReportRequest

LONGEST_WAIT_S = 10.0
WAIT_POLL_S = 0.05


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Of every gang, or of the one that is named; of the others' living agents too where it has none.

    The mark says where every run is, without its counters: whoever follows a start asks once a second and still hears
    at once.
    """
    asked = request_of(ReportRequest, request)
    state = files.state_dir(asked.state_dir)
    end = time.monotonic() + min(asked.wait_s, LONGEST_WAIT_S)
    while True:
        before = _signs(state, asked.gang)
        reports = _reports(state, asked.gang)
        seen = ";".join(map(_where, reports))
        if seen != asked.seen or time.monotonic() >= end:
            unfinished = (f"{files.gang_dir(state, name)}/{files.BEGUN_FILE}" for name in _names(state, asked.gang))
            return ReportAnswer(
                now=time.time(),
                state_dir=state,
                reports=tuple(reports),
                seen=seen,
                begun=tuple(os.path.basename(os.path.dirname(path)) for path in unfinished if os.path.exists(path)),
                user=viewers.user_name(os.geteuid()),
                **({} if any(_is_of(report, asked.gang) for report in reports) else _beside(state)),
            ).as_json()
        while time.monotonic() < end and _signs(state, asked.gang) == before:
            time.sleep(WAIT_POLL_S)


def _beside(state: str) -> dict[str, Any]:
    """Keys of the answer: agents that no report tells of."""
    return {"others": others.other_agents(state), "without_files": told_without_files(state)}


def told_without_files(state: str) -> tuple[OtherAgent, ...]:
    """The same as `without_files`, for the controller."""
    return tuple(replace(shown.agent, pid=pid) for pid, shown in without_files(state).items())


def without_files(state: str) -> dict[int, ShownAgent]:
    """Living agents of this directory that none of its files tells of, by process id: it was deleted, or made anew, or
    a part of it is gone."""
    folders = filter(None, (files.current_run(state, gang) for gang in files.gangs(state)))
    recorded = {pid for pid, start in map(agent, folders) if processes.alive(pid, start)}
    return {
        pid: shown
        for pid, shown in others.agents_of(state).items()
        if pid not in recorded and processes.lives(pid) and shown.is_held_by(pid) is not False
    }


def _reports(state: str, gang: str) -> list[dict[str, Any]]:
    reports = [report for name in _names(state, gang) if (report := of_gang(state, name))]
    if gang and not any(_is_of(report, gang) for report in reports):  # it may run under a name that it had before
        others = (of_gang(state, name) for name in files.gangs(state) if name != gang)
        reports += [report for report in others if report.get("alive")]
    return reports


def _names(state: str, gang: str) -> list[str]:
    return [gang] if gang else files.gangs(state)


def _signs(state: str, gang: str) -> list[object]:
    """What no report changes without: looking at it costs a twentieth of reading the reports.

    A report is replaced by name; an agent that is killed writes none.
    """
    folders = filter(None, (files.current_run(state, name) for name in _names(state, gang)))
    return [(folder, files.identity(f"{folder}/{REPORT_FILE}"), processes.alive(*agent(folder))) for folder in folders]


def _is_of(report: dict[str, Any], gang: str) -> bool:
    """Whether it is a living agent's, of this gang; '' is none."""
    return bool(gang and report.get("alive")) and report.get("gang") == gang


def _where(raw: dict[str, Any]) -> str:
    """Where a run is, without its counters."""
    report = Report.read(raw)
    if isinstance(report, Unreadable):
        return str(report)
    words = (
        report.run_id,
        report.state.value,
        report.phase.name,
        report.alive,
        report.service_state,
        bool(report.looks_until),
    )
    return f"{' '.join(map(str, words))} {','.join(report.silent)}"


def of_gang(state: str, gang: str) -> dict[str, Any]:
    """The current run's report with `alive` and `now` added; empty where nothing was ever staged."""
    folder = files.current_run(state, gang)
    return raw_of(folder) if folder else {}


def raw_of(folder: str) -> dict[str, Any]:
    """One run's report for the controller; what can't be read is passed on unchanged, for the controller to report."""
    last = _read(folder)
    if isinstance(last, Report):
        return last.as_json()
    if last is None:
        return {}
    raw = files.read_json(f"{folder}/{REPORT_FILE}")
    return {**_whose(folder), **raw, "alive": processes.alive(*agent(folder))}


def of_run(folder: str) -> Report | None:
    """One run's report; None where there is none. One that can't be read counts as failed: whoever ends the run must
    not depend on it."""
    last = _read(folder)
    if not isinstance(last, Unreadable):
        return last
    return Report(
        **_whose(folder),
        state=AgentState.FAILED,
        alive=processes.alive(*agent(folder)),
        now=time.time(),
        updated_at=time.time(),
        remarks=(f"the agent's report can't be read: {last}",),
    )


def agent(folder: str) -> tuple[int, int]:
    """Process id and start time of a run's agent; zeros where none was started."""
    process = files.read_as(AgentProcess, f"{folder}/{AGENT_FILE}") or AgentProcess()
    return process.pid, process.start


def left_over(folder: str) -> list[tuple[int, int]]:
    """(pid, start) of the run's own processes that still live, agent and guardian not among them."""
    known = files.read_as(KnownProcesses, f"{folder}/{PROCESSES_FILE}") or KnownProcesses()
    return [(part[0], part[1]) for part in known.processes if len(part) == 2 and processes.alive(part[0], part[1])]


def _now(report: Report) -> float:
    """By the clock that the report's own times are from."""
    return clock.now(report.clock) if len(report.clock) == 2 and report.boot_id == processes.boot_id() else time.time()


def _read(folder: str) -> Report | Unreadable | None:
    """The file, and what is known beside it; ranks of a dead agent are looked up, since its word about them is old."""
    if files.read_text(f"{folder}/{REPORT_FILE}") is None:
        return None
    report = Report.read(files.read_json(f"{folder}/{REPORT_FILE}"))
    if isinstance(report, Unreadable):
        return report
    alive, lines = processes.alive(*agent(folder)), f"{folder}/{TRANSPORT_FILE}"
    transport = files.read_as(TransportLines, lines) if os.path.exists(lines) else None
    gathered = f"{folder}/{HANG_FILE}"
    hang = files.read_as(HangLook, gathered) if os.path.exists(gathered) else None
    report = replace(report, alive=alive, now=_now(report), transport=transport, hang=hang, disk_full=_is_full(folder))
    return report if alive else _of_a_dead_agent(folder, report)


def _of_a_dead_agent(folder: str, report: Report) -> Report:
    """With a person's order to end it, and with what it could not write itself."""
    order = files.read_as(GoalOrder, f"{folder}/{GOAL_FILE}") or GoalOrder()
    report = replace(report, ordered=order.ordered)
    if report.state.over or report.state is AgentState.STAGED:
        return replace(report, disk_full=False)
    living = {pid for pid, _ in left_over(folder)}
    state_of = {rank.pid: RankState.ALIVE if rank.pid in living else RankState.DEAD for rank in report.ranks}
    return replace(
        report,
        rebooted=bool(report.boot_id) and report.boot_id != processes.boot_id(),
        ranks=tuple(replace(rank, state=state_of[rank.pid]) if rank.pid else rank for rank in report.ranks),
    )


def _is_full(folder: str) -> bool:
    try:
        room = os.statvfs(folder)
    except OSError:
        return False  # it was removed meanwhile
    return room.f_bavail == 0 or (room.f_files > 0 and room.f_favail == 0)


def _whose(folder: str) -> dict[str, Any]:
    """What a report begins with, from the folder and from what was staged in it."""
    node, parts = files.read_json(f"{folder}/{RUN_FILE}").get("node"), folder.split("/")
    return {"run_id": parts[-1], "gang": parts[-3], "node": node if isinstance(node, str) else "", "node_rank": 0}


MOST_EVENTS = 400
MOST_OF_A_MONTH = 2_000
"""Runs, and lines of the audit log, of a gang that is restarted every 20 minutes for 30 days."""
PAST_S = 30 * 86400.0
"""So long the report of a run is kept whose files are gone."""


def history(request: dict[str, Any]) -> dict[str, Any]:
    """One report a kept run, the newest last; with events, audit or older runs where they are asked for."""
    asked = request_of(HistoryRequest, request)
    state = files.state_dir(asked.state_dir)
    gang = files.gang_dir(state, asked.gang)
    reports = list(filter(None, map(raw_of, sorted(glob.glob(f"{glob.escape(gang)}/runs/*")))))
    return HistoryAnswer(
        reports=(*(_past(gang, reports) if asked.older else ()), *reports),
        events=_lines(f"{files.run_dir(state, asked.gang, asked.run_id)}/{EVENTS_LOG}", MOST_EVENTS)
        if asked.run_id
        else (),
        audit=_of_both(f"{gang}/{AUDIT}") if asked.audit else (),
        only_looks=viewers.only_looks(state),
        now=time.time(),
    ).as_json()


def _past(gang: str, kept: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The reports of runs of the last 30 days whose folders are gone."""
    since, there = time.time() - PAST_S, {report.get("run_id") for report in kept}
    lines = _of_both(f"{gang}/{PAST_FILE}")
    return [line for line in lines if line.get("run_id") not in there and _is_since(line.get("started_at"), since)]


def _is_since(at: object, since: float) -> bool:
    return isinstance(at, (int, float)) and at >= since


def _of_both(path: str) -> tuple[dict[str, Any], ...]:
    """The newest lines of a bounded log and its predecessor."""
    return (*_lines(predecessor(path), MOST_OF_A_MONTH), *_lines(path, MOST_OF_A_MONTH))[-MOST_OF_A_MONTH:]


def _lines(path: str, most: int) -> tuple[dict[str, Any], ...]:
    """The newest lines, oldest first; one that a crash cut short is passed over."""
    events = map(parsed, (files.read_text(path) or "").splitlines()[-most:])
    return tuple(event for event in events if isinstance(event, dict))
