"""What `up` adds to the engine's own start: the same launch scripts started by hand over ssh, and by `up`.

Wanted: at most 2 s more from the first launch to the first healthy answer.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from common import MODEL, command, lab, report, timed

RUNS = 3


def main() -> None:
    with lab("bench-up", "--level", "1") as inventory:
        hosts = ["-i", str(inventory)]
        plan = json.loads(subprocess.check_output(command("plan", *hosts, "--model", MODEL, "--json"), timeout=60))
        by_hand = min(_by_hand(inventory, plan) for _ in range(RUNS))
        ups = []
        for _ in range(RUNS):
            ups.append(timed(command("up", *hosts, "--model", MODEL), runs=1))
            timed(command("down", *hosts), runs=1)
        up = min(ups)
    report(
        "from nothing to the first healthy answer, 4 nodes and 32 stand-in ranks, best of 3",
        [
            ("launch scripts by hand over ssh", by_hand, ""),
            ("l40s-deploy up, whole process", up, f"{up - by_hand:+.2f} s, {up / by_hand:.2f} times"),
        ],
    )


def _by_hand(inventory: Path, plan: dict[str, Any]) -> float:
    """Start every node's script in its own ssh session, wait for /health, end the leader's engine and so the rest."""
    scripts = {
        node["name"]: subprocess.check_output(
            command("plan", "-i", str(inventory), "--model", MODEL, "--show", "script", "--node", node["name"]),
            timeout=60, text=True, stderr=subprocess.DEVNULL,
        )
        for node in plan["nodes"]
    }  # fmt: skip
    ssh = _ssh(inventory)
    for node in plan["nodes"]:  # what `up` finds made, or makes before it starts anything
        subprocess.run([*ssh, f"root@{node['address']}", f"mkdir -p {node['working_dir']}"], check=True, timeout=30)
    begin = time.monotonic()
    sessions = [_start(ssh, node["address"], scripts[node["name"]]) for node in plan["nodes"]]
    try:
        _wait_healthy(plan["nodes"][0]["http_url"], deadline=begin + 120)
        return time.monotonic() - begin
    finally:
        _end(ssh, plan["nodes"][0]["address"], sessions)


def _ssh(inventory: Path) -> list[str]:
    key, known = inventory.with_name("client"), inventory.with_name("known_hosts")
    return ["ssh", "-i", str(key), "-o", f"UserKnownHostsFile={known}", "-o", "BatchMode=yes"]


def _start(ssh: list[str], address: str, script: str) -> subprocess.Popen[str]:
    """The script execs the engine, so the shell's own process id, its first line, is the engine's."""
    session = subprocess.Popen(
        [*ssh, f"root@{address}", "echo $$; exec sh -s 2>/dev/null"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert session.stdin is not None
    session.stdin.write(script)
    session.stdin.close()
    session.stdin = None
    return session


def _end(ssh: list[str], leader: str, sessions: list[subprocess.Popen[str]]) -> None:
    out = sessions[0].stdout
    pid = int(out.readline()) if out else 0
    subprocess.run([*ssh, f"root@{leader}", f"kill -TERM {pid}"], check=False, timeout=30)
    for session in sessions:
        session.communicate(timeout=60)


def _wait_healthy(url: str, *, deadline: float) -> None:
    while not _healthy(url):
        if time.monotonic() > deadline:
            raise SystemExit(f"{url}/health did not answer 200 in time")
        time.sleep(0.05)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    main()
