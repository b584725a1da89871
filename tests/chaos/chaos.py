"""Plays the rows of the chaos table in a lab, and writes what came of each. `python -m tests.chaos.chaos` runs all."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tests.support.small_lab import SmallLab, small_lab

HERE = Path(__file__).resolve().parent
REPORT = HERE.parents[1] / "docs" / "chaos.md"
GONE_S = 15.0
"""For an engine's processes to be gone on every node; the agents need less, this machine may be busy."""
MOMENT_S = 60.0


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    id: str
    at: str
    node: str
    kill: str
    how: str
    end: dict[str, Any] = field(hash=False)
    ci: bool = False


def table() -> list[Row]:
    """The rows in the file's order."""
    return [Row(**row) for row in yaml.safe_load((HERE / "table.yml").read_text())["rows"]]


def play(lab: SmallLab, row: Row) -> str:
    """'' where it ended as expected, else how it did."""
    before = _settled(lab)
    if row.at in ("ready", "draining"):
        lab.serve()
        verb = lab.start("down") if row.at == "draining" else None
    else:
        verb = lab.start("up", "--model", str(lab.profile))
    try:
        hit = _strike(lab, row, verb, before)
        if hit is None:
            return f"the moment did not come: {_output(verb)}"
        trouble = _meanwhile(lab, row)
        if verb is not None:
            verb.wait(120)
        _then(lab, row, hit)
    finally:
        _close(verb)
    return trouble or _judge(lab, row)


def _close(verb: subprocess.Popen[str] | None) -> None:
    """End a verb that still runs, and its pipes with it."""
    if verb is not None:
        if verb.poll() is None:
            verb.kill()
        for pipe in (verb.stdout, verb.stderr):
            if pipe is not None:
                pipe.close()
        verb.wait(10)


def _settled(lab: SmallLab) -> str:
    """Nothing runs; returns the run that was the last one."""
    lab.deploy("down", "--now", check=False)
    return lab.on("node1", "cat /var/lib/l40s-deploy/gangs/gang0/current 2>/dev/null || true").strip()


def _strike(lab: SmallLab, row: Row, verb: subprocess.Popen[str] | None, before: str) -> int | None:
    """The process id that was hit, None where the moment did not come."""
    controller = row.kill == "controller"
    words = ["gang0", row.at, "nothing" if controller else row.kill, row.how, str(MOMENT_S)]
    words += [] if row.at in ("ready", "draining") else [before]
    script = (HERE / "strike.py").read_bytes()
    said = lab.on(row.node, f"python3 - {shlex.join(words)} || echo missed", script, timeout=MOMENT_S + 20)
    if "missed" in said:
        return None
    if controller and verb is not None:
        verb.send_signal(getattr(signal, f"SIG{row.how}"))
        verb.wait(10)
        return verb.pid
    return int(said or 0)


def _meanwhile(lab: SmallLab, row: Row) -> str:
    wanted = row.end.get("meanwhile")
    if wanted and not _until(lambda: lab.gang()["state"] == wanted, 30):
        return f"meanwhile it was {lab.gang()['state']}"
    return ""


def _then(lab: SmallLab, row: Row, hit: int) -> None:
    then = row.end.get("then")
    if then == "up":
        lab.serve()
    elif then == "guard":
        _until(lambda: lab.gang()["state"] == "failed", 30)
        lab.deploy("guard", "--once", check=False)
    elif then == "continue":
        lab.on(row.node, f"kill -CONT {hit}")


def _judge(lab: SmallLab, row: Row) -> str:
    end = row.end
    if not _until(lambda: lab.gang()["state"] == end["state"], 40):
        return f"the gang is {lab.gang()['state']}: {lab.gang()['cause']}"
    if end["state"] == "ready":
        return ""
    cause = lab.gang()["cause"] or {}
    for name in ("node", "tp_rank", "signal"):
        if name in end and cause.get(name) != end[name]:
            return f"its cause has {name} {cause.get(name)}: {cause.get('text')}"
    if not _until(lambda: not lab.engine_processes(), GONE_S):
        return f"left behind: {lab.engine_processes()}"
    return ""


def _until(done: Callable[[], bool], deadline_s: float) -> bool:
    end = time.monotonic() + deadline_s
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


def _output(verb: subprocess.Popen[str] | None) -> str:
    if verb is None or verb.stdout is None:
        return ""
    verb.kill()
    return verb.stdout.read()[-500:]


def document(results: Sequence[tuple[Row, str, float]]) -> str:
    """docs/chaos.md."""
    good = sum(not trouble for _, trouble, _ in results)
    lines = [
        "# Chaos",
        "",
        (
            f"`make chaos` plays tests/chaos/table.yml in a lab of two nodes with two ranks each: {good} of "
            f"{len(results)} ended as the table says. Its stand-in engine's ranks take no notice of each other's death."
        ),
        "",
        "| hit | where | when | signal | must end | ended | s |",
        "|---|---|---|---|---|---|---|",
    ]
    for row, trouble, seconds in results:
        wanted = ", ".join(f"{name} {value}" for name, value in row.end.items())
        ended = "so" if not trouble else f"**{' '.join(trouble.split())[:200]}**".replace("|", "/")
        lines.append(f"| {row.kill} | {row.node} | {row.at} | {row.how} | {wanted} | {ended} | {seconds:.0f} |")
    return "\n".join(lines) + "\n"


def main(words: Sequence[str]) -> int:
    """Play all rows, or those whose id holds one of the words (the report is left alone then)."""
    rows = [row for row in table() if not words or any(word in row.id for word in words)]
    results: list[tuple[Row, str, float]] = []
    with small_lab("chaos", nodes=2, env={"STANDIN_SPEED": "0.3"}) as lab:
        for row in rows:
            began = time.monotonic()
            trouble = play(lab, row)
            results.append((row, trouble, time.monotonic() - began))
            sys.stdout.write(f"{row.id}: {trouble or 'as expected'} ({results[-1][2]:.1f} s)\n")
            sys.stdout.flush()
    if not words:
        REPORT.write_text(document(results))
    return 1 if any(trouble for _, trouble, _ in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
