"""`l40s-deploy history`: the runs that the nodes have kept, or the commands that changed a gang, and how they ended."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from orchestrator.cli.options import add_usual_of_gangs
from orchestrator.cli.screen import Screen, printable
from orchestrator.cli.tables import cell
from orchestrator.gang.commands.cluster import connected_cluster
from orchestrator.gang.history import PastRun
from orchestrator.gang.overview import cause_json
from orchestrator.gang.steps.status.history import GangHistory, history
from orchestrator.model.words import counted, one_line
from orchestrator.protocol.errors import Exit

_LONGEST = 4_000
"""Characters of a command with what came of it."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_usual_of_gangs(
        parser,
        "l40s-deploy history gang0",
        "l40s-deploy history --commands",
        "l40s-deploy history --json | jq '.runs[0].cause.text'",
    )
    parser.add_argument(
        "--commands", action="store_true", help="who changed a gang, when, with which command, and how that ended"
    )


def _runs_json(histories: Sequence[GangHistory]) -> dict[str, Any]:
    return {"runs": [_json(run) for kept in histories for run in kept.runs]}


def _commands_json(histories: Sequence[GangHistory]) -> dict[str, Any]:
    return {"gangs": [{"name": kept.gang, "lines": [dict(line) for line in kept.audit]} for kept in histories]}


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when every node answered, 4 otherwise."""
    with connected_cluster(args, screen, asks_lost=False) as operation:
        histories = history(operation, tuple(args.gang))
    if args.json:
        screen.json(_commands_json(histories) if args.commands else _runs_json(histories))
    else:
        screen.show(*(_commands(histories) if args.commands else _runs(histories)))
    for name, failure in (entry for kept in histories for entry in kept.failures.items()):
        screen.say(f"{name}: {failure.what}")
    return Exit.UNREACHABLE if any(kept.failures for kept in histories) else Exit.DONE


def _commands(histories: Sequence[GangHistory]) -> Iterator[str]:
    for kept in histories:
        for line in kept.audit:
            at = line.get("at")
            when = _moment(float(at)) if isinstance(at, (int, float)) else ""
            who = f"{line.get('who')}@{line.get('host')} (pid {line.get('pid')})"
            action, _, reason = str(line.get("action")).partition(": ")
            why = f" ({line['why']})" if line.get("why") else ""
            words = f"{action}  {line.get('command')}{why}" + (f": {reason}" if reason else "")
            yield f"{when}  {kept.gang}  {who}  {one_line(words, _LONGEST)}"
        if not kept.audit:
            yield f"{kept.gang}: no commands recorded"


def _moment(at: float) -> str:
    """'2026-11-22 15:04:05', local time; '' for none."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at > 0 else ""


def _runs(histories: Sequence[GangHistory]) -> Iterator[str | Text]:
    for run in (run for kept in histories for run in kept.runs):
        yield from _run(run)
    midnight = time.mktime((*time.localtime()[:3], 0, 0, 0, 0, 0, -1))
    for kept in histories:
        if today := sum(run.started >= midnight for run in kept.runs):
            least = "at least " if kept.failures else ""
            yield f"{kept.gang}: started {least}{counted(today, 'time')} since midnight"
    if not any(kept.runs for kept in histories):
        yield "no runs recorded"


def _run(run: PastRun) -> Iterator[str | Text]:
    times = f"{_moment(run.started)} to {_moment(run.ended)}" if run.ended > 0 else _moment(run.started)
    who = f"  run {run.run_id}  plan {run.plan_id}" + (f"  by {run.by}" if run.by else "")
    end = cell(run.end, "bold red" if run.end == "failed" else "bold")
    yield Text.assemble(printable(f"{run.gang}  {times}  "), end, printable(who))
    start = f"start: {run.start.words}" if run.start else ""
    yield from (cell(f"  {words}", "dim") for words in (run.command, start) if words)
    if gate := run.gate:
        judged = ": ".join(filter(None, (gate["verdict"], gate["why"])))
        yield cell(f"  gate against plan {gate['old']}: {judged}", "dim")
        yield from (cell(f"    {line}", "dim") for line in gate["page"][1:])
        if gate["html"]:
            yield cell(f"      page: {gate['html']}", "dim")
    if run.cause:
        yield f"  cause: {run.cause.node}: {run.cause.text}"


def _json(run: PastRun) -> dict[str, Any]:
    return {
        "gang": run.gang,
        "run_id": run.run_id,
        "started": run.started,
        "ended": run.ended or None,
        **{name: getattr(run, name) for name in ("by", "command", "plan_id", "model", "end")},
        "start": run.start and run.start.as_json(),
        "cause": cause_json(run.cause),
        "gate": dict(run.gate) if run.gate else None,
    }
