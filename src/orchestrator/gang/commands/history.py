"""`l40s-deploy history`: the runs that the nodes have kept, or the commands that changed a gang, and how they ended."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from orchestrator.cli.options import add_usual_of_gangs, open_cluster
from orchestrator.cli.screen import Screen, printable
from orchestrator.gang.history import PastRun
from orchestrator.gang.overview import cause_json
from orchestrator.gang.steps.status.history import GangHistory, history
from orchestrator.model.errors import Exit
from orchestrator.topology.paths import counted


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


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when every node answered, 4 otherwise."""
    found = history(open_cluster(args, screen), tuple(args.gang))
    if args.json:
        runs = [_json(run) for kept in found for run in kept.runs]
        gangs = [{"name": kept.gang, "lines": [dict(line) for line in kept.audit]} for kept in found]
        screen.json({"gangs": gangs} if args.commands else {"runs": runs})
    elif args.commands:
        _show_commands(found, screen)
    else:
        _show(found, screen)
    return _lost(found, screen)


def _lost(found: Sequence[GangHistory], screen: Screen) -> int:
    """Say which nodes did not answer; the exit code for that."""
    for name, failure in (one for kept in found for one in kept.failures.items()):
        screen.say(f"{name}: {failure.what}")
    return Exit.UNREACHABLE if any(kept.failures for kept in found) else Exit.DONE


def _show_commands(found: Sequence[GangHistory], screen: Screen) -> None:
    for kept in found:
        for line in kept.audit:
            at = line.get("at")
            when = _moment(float(at)) if isinstance(at, (int, float)) else ""
            who = f"{line.get('who')}@{line.get('host')} (pid {line.get('pid')})"
            why = f" ({line['why']})" if line.get("why") else ""
            screen.out.print(printable(f"{when}  {kept.gang}  {who}  {line.get('action')}  {line.get('command')}{why}"))
        if not kept.audit:
            screen.out.print(printable(f"{kept.gang}: no commands recorded"))


def _moment(at: float) -> str:
    """'2026-11-22 15:04:05', local time; '' for none."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at > 0 else ""


def _show(found: Sequence[GangHistory], screen: Screen) -> None:
    from rich.text import Text

    runs = [run for kept in found for run in kept.runs]
    for run in runs:
        times = f"{_moment(run.started)} to {_moment(run.ended)}" if run.ended > 0 else _moment(run.started)
        end = (printable(run.end), "bold red" if run.end == "failed" else "bold")
        who = f"  run {run.run_id}  plan {run.plan_id}" + (f"  by {run.by}" if run.by else "")
        screen.out.print(Text.assemble(printable(f"{run.gang}  {times}  "), end, printable(who)))
        start = f"start: {run.start.words}" if run.start else ""
        cause = f"cause: {run.cause.node}: {run.cause.text}" if run.cause else ""
        for words in filter(None, (run.command, start, cause)):
            screen.out.print(Text(printable(f"  {words}"), "" if words is cause else "dim"))
    midnight = time.mktime((*time.localtime()[:3], 0, 0, 0, 0, 0, -1))
    for kept in found:
        if today := sum(run.started >= midnight for run in kept.runs):
            screen.out.print(printable(f"{kept.gang}: started {counted(today, 'time')} since midnight"))
    if not runs:
        screen.out.print("no runs recorded")


def _json(run: PastRun) -> dict[str, Any]:
    return {
        "gang": run.gang,
        "run_id": run.run_id,
        "started": run.started,
        "ended": run.ended or None,
        **{name: getattr(run, name) for name in ("by", "command", "plan_id", "model", "end")},
        "start": run.start and run.start.as_json(),
        "cause": cause_json(run.cause),
    }
