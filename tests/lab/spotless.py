"""Run as `spotless.py LAB_ROOT LEVEL VICTIM` on a machine (namespaces) of its own: a lab leaves no trace.

VICTIM is killed with SIGKILL while the lab is up (starter: `lab up` itself, half-way) before `lab down`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from l40s_lab.life.home import Home

COMMAND = [sys.executable, "-m", "orchestrator.cli.main", "lab"]


def traces(root: Path) -> dict[str, object]:
    links = json.loads(subprocess.run(["ip", "-json", "link"], capture_output=True, check=True).stdout)
    spaces = set()
    living = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it may end while we look
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            if state != "Z":
                living.add(int(entry.name))
                spaces |= {str(link.readlink()) for link in (entry / "ns").iterdir()}
    return {
        "links": sorted(link["ifname"] for link in links),
        "routes": subprocess.run(["ip", "route", "show", "table", "all"], capture_output=True, check=True).stdout,
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "processes": sorted(living),
        "namespaces": sorted(spaces),
        "control groups": sorted(control_groups(root)),
        "files": sorted(str(path) for path in root.parent.rglob("*")),
    }


def control_groups(root: Path) -> Iterator[str]:
    """The lab's groups in every cgroup v2 tree that this machine shows."""
    mark = Home("spotless", root / "spotless").mark
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            yield from (folder for folder, _, _ in os.walk(place) if mark in folder)


def main(root: Path, level: str, victim: str) -> int:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    root.parent.mkdir(parents=True, exist_ok=True)
    os.environ["L40S_LAB_ROOT"] = str(root)
    before = traces(root)
    up = subprocess.Popen([*COMMAND, "up", "--nodes", "2", "--name", "spotless", "--level", level])
    if victim == "starter":
        while not (root / "spotless/supervisor.json").exists():
            time.sleep(0.001)
        up.kill()
    up.wait()
    if victim in ("supervisor", "node", "sshd"):
        os.kill(pid_of(root / "spotless", victim), signal.SIGKILL)
    subprocess.run([*COMMAND, "down", "--name", "spotless"], check=True)
    deadline = time.monotonic() + 10
    while (after := traces(root)) != before and time.monotonic() < deadline:
        time.sleep(0.01)
    for name, found in after.items():
        if found != before[name]:
            print(f"{name} before: {before[name]!r}\n{name} after: {found!r}")
    return 0 if after == before else 1


def pid_of(lab: Path, victim: str) -> int:
    pid = int(json.loads((lab / "supervisor.json").read_text())["pid"])
    for _ in range(("supervisor", "node", "sshd").index(victim)):
        pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    return pid


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
