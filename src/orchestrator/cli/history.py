"""`l40s-deploy history`: the runs that the nodes have kept: who, when, what, how it ended."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from orchestrator.cli.options import add_examples, add_gangs, add_inventory, add_json, open_cluster
from orchestrator.cli.screen import Screen, printable
from orchestrator.gang.history import PastRun
from orchestrator.model.exit_codes import Exit
from orchestrator.workflows.status.history import Kept, history
from orchestrator.workflows.status.status import cause_json


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_examples(parser, "l40s-deploy history --gang gang0", "l40s-deploy history --json | jq '.runs[0].cause.text'")
    add_inventory(parser)
    add_gangs(parser)
    add_json(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when every node answered, 4 otherwise."""
    found = history(open_cluster(args, screen), tuple(args.gang))
    if args.json:
        screen.json({"runs": [_json(run) for kept in found for run in kept.runs]})
    else:
        _show(found, screen)
    return lost(found, screen)


def lost(found: Sequence[Kept], screen: Screen) -> int:
    """Say which nodes did not answer; the exit code for that."""
    for name, failure in (one for kept in found for one in kept.failures.items()):
        screen.say(f"{name}: {failure.what}")
    return Exit.UNREACHABLE if any(kept.failures for kept in found) else Exit.DONE


def moment(at: float) -> str:
    """'2026-11-22 15:04:05', local time; '' for none."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at > 0 else ""


def _show(found: Sequence[Kept], screen: Screen) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("gang", "started", "ended", "end", "by", "command", "plan", "start", "cause"):
        table.add_column(title)
    for run in (run for kept in found for run in kept.runs):
        cause = f"{run.cause.node}: {run.cause.text}" if run.cause else ""
        start = run.start.words if run.start else ""
        times = (moment(run.started), moment(run.ended))
        cells = (run.gang, *times, run.end, run.by, run.command, run.plan_id, start, cause)
        table.add_row(*(Text(printable(cell), "bold red" if cell == "failed" else "") for cell in cells))
    screen.out.print(table if table.rows else "no runs recorded")


def _json(run: PastRun) -> dict[str, Any]:
    return {
        "gang": run.gang,
        "run_id": run.run_id,
        "started": run.started,
        "ended": run.ended or None,
        "by": run.by,
        "command": run.command,
        "plan_id": run.plan_id,
        "model": run.model,
        "end": run.end,
        "start": run.start.as_json() if run.start else None,
        "cause": cause_json(run.cause) if run.cause else None,
    }
