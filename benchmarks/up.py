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
    with lab("bench-up") as inventory:
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
    """Start every node's script in its own ssh session, wait for /health, end the sessions and the engines."""
    key, known = inventory.with_name("client"), inventory.with_name("known_hosts")
    options = ["-i", str(key), "-o", f"UserKnownHostsFile={known}", "-o", "BatchMode=yes"]
    sessions = []
    scripts = {
        node["name"]: subprocess.check_output(
            command("plan", "-i", str(inventory), "--model", MODEL, "--show", "script", "--node", node["name"]),
            timeout=60, text=True,
        )
        for node in plan["nodes"]
    }  # fmt: skip
    begin = time.monotonic()
    for node in plan["nodes"]:
        sessions.append(
            subprocess.Popen(
                ["ssh", *options, f"root@{node['address']}", "sh -s"],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True,
            )
        )  # fmt: skip
        stdin = sessions[-1].stdin
        assert stdin is not None
        stdin.write(scripts[node["name"]])
        stdin.close()
    try:
        _wait_healthy(plan["nodes"][0]["http_url"], deadline=begin + 120)
        return time.monotonic() - begin
    finally:
        leader = plan["nodes"][0]["address"]
        subprocess.run(
            ["ssh", *options, f"root@{leader}", "pkill -TERM -o -f sglang.launch_server"], check=False, timeout=30
        )
        for session in sessions:
            session.wait(timeout=60)


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
