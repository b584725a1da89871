"""Runs on a node: waits until this node's part of a gang is where it shall be hit, and hits it. Standard library only.

Arguments: gang, the phase or state to wait for, what to hit (rank N, engine, agent, nothing), signal name, seconds.
Prints the process id that was hit; exits with 1 when the moment did not come.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import time

STATE = pathlib.Path("/var/lib/l40s-deploy/gangs")


def read(path: pathlib.Path) -> dict:  # type: ignore[type-arg]
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def victim(run: pathlib.Path, report: dict, what: str) -> int:  # type: ignore[type-arg]
    """Process id, 0 where it is not there yet."""
    if what == "agent":
        return int(read(run / "agent.json").get("pid") or 0)
    if what == "engine":
        return int(report.get("engine_pid") or 0)
    number = int(what.split()[1])
    return next((int(rank["pid"]) for rank in report.get("ranks") or () if rank["tp_rank"] == number), 0)


def main() -> int:
    gang, moment, what, name, seconds = sys.argv[1:6]
    before = sys.argv[6] if len(sys.argv) > 6 else ""
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        try:
            run_id = (STATE / gang / "current").read_text().strip()
        except OSError:
            run_id = ""
        run = STATE / gang / "runs" / run_id
        report = read(run / "report.json") if run_id and run_id != before else {}
        if moment in (report.get("state"), (report.get("phase") or {}).get("name")):
            if what == "nothing":
                return 0
            pid = victim(run, report, what)
            if pid:
                os.kill(pid, getattr(signal, f"SIG{name}"))
                print(pid)
                return 0
        time.sleep(0.005)
    return 1


if __name__ == "__main__":
    sys.exit(main())
