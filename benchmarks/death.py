"""SIGKILL of one TP rank: how long until somebody can name it, and until every other rank is gone.

The same gang is started by hand (launch scripts over ssh: the engine alone) and by `up`; twice: as 32 stand-in ranks,
which like ranks in a NCCL collective take no notice of a dead peer, and as two ranks of the real SGLang on CPU, which
do (Gloo closes their connections). Wanted: named by `status`, a whole process each time, within 1 s of the death, and
all others gone within 5 s. Ranks of several nodes are killed, the leader's among them; the slowest counts.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from by_hand import ByHand, healthy
from common import MODEL, command, lab, report, timed

PATIENCE_S = 60.0
"""The engine alone may never end; what is not seen by then counts as so long."""


@dataclass(frozen=True)
class Ended:
    """Seconds after the death. noticed: its address says so, or `status` names the rank; gone: no rank is left."""

    noticed: float
    gone: float


def main() -> None:
    rows = [*compare("32 stand-in ranks", (19, 0, 15, 31), MODEL)]
    if "--standin" not in sys.argv:
        rows += compare("2 ranks of SGLang, CPU", (1, 0), "tiny-deepseek-v3", "--engine", "sglang", "--nodes", "2")
    report(f"SIGKILL of one rank; {PATIENCE_S:g} s: not seen by then", rows)


def compare(title: str, ranks: Sequence[int], model: str, *shape: str) -> list[tuple[str, float, str]]:
    """Rows of one engine. ranks: killed one after the other; the first of them in the engine alone too."""
    with lab("bench-death", "--level", "1", *shape) as inventory:
        processes = Processes(inventory)
        alone = engine_alone(ByHand(inventory, model), processes, ranks[0])
        ours = [deployed(inventory, model, processes, rank) for rank in ranks]
    noticed = max(one.noticed for one in ours)
    gone = max(one.gone for one in ours)
    return [
        (f"{title}: alone, /health says so", alone.noticed, ""),
        (f"{title}: `status` names any of {len(ranks)}", noticed, faster(alone.noticed, noticed)),
        (f"{title}: alone, others gone", alone.gone, ""),
        (f"{title}: l40s-deploy, others gone", gone, faster(alone.gone, gone)),
    ]


def faster(alone: float, ours: float) -> str:
    """The ratio in words; what was not waited for to its end is a lower bound."""
    return f"{'at least ' if alone >= PATIENCE_S else ''}{alone / ours:.0f} times as fast"


def engine_alone(gang: ByHand, processes: Processes, rank: int) -> Ended:
    """The engine's own behaviour; what is left of it is killed."""
    gang.start()
    try:
        gang.wait_healthy(300)
        return strike(processes, rank, lambda: not healthy(gang.url, timeout_s=PATIENCE_S))
    finally:
        gang.kill()


def deployed(inventory: Path, model: str, processes: Processes, rank: int) -> Ended:
    """The same with an agent on each node."""
    hosts = ["-i", str(inventory)]
    timed(command("up", *hosts, "--model", model), runs=1)

    def named() -> bool:
        done = subprocess.run(
            command("status", *hosts, "--json"), capture_output=True, text=True, timeout=60, check=False
        )
        cause = json.loads(done.stdout)["gangs"][0]["cause"]
        return bool(cause) and (cause["tp_rank"], cause["signal"]) == (rank, signal.SIGKILL)

    try:
        return strike(processes, rank, named)
    finally:
        timed(command("down", *hosts), runs=1)


def strike(processes: Processes, rank: int, noticed: Callable[[], bool]) -> Ended:
    """Kill the rank and look for both ends at once."""
    (victim,) = (pid for pid, tp_rank in processes.ranks() if tp_rank == rank)
    with ThreadPoolExecutor(2) as both:
        begin = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        gone = both.submit(seconds_until, lambda: not any(processes.ranks()), begin, pause_s=0.01)
        seen = both.submit(seconds_until, noticed, begin, pause_s=0.05)
        return Ended(noticed=seen.result(), gone=gone.result())


def seconds_until(condition: Callable[[], bool], begin: float, *, pause_s: float) -> float:
    """From `begin` on; PATIENCE_S where it does not come to hold."""
    while time.monotonic() - begin < PATIENCE_S:
        if condition():
            return min(time.monotonic() - begin, PATIENCE_S)
        time.sleep(pause_s)
    return PATIENCE_S


class Processes:
    """The lab's rank processes as this machine sees them: by the nodes' process namespaces, other labs' left out."""

    def __init__(self, inventory: Path) -> None:
        lab_name = inventory.parent.name
        status = json.loads(subprocess.check_output(command("lab", "status", "--name", lab_name, "--json"), timeout=60))
        self.namespaces = {
            subprocess.check_output(
                command("lab", "exec", "--name", lab_name, node["name"], "--", "readlink", "/proc/self/ns/pid"),
                text=True,
                timeout=60,
                stderr=subprocess.DEVNULL,
            ).strip()
            for node in status["nodes"]
        }

    def ranks(self) -> Iterator[tuple[int, int]]:
        """(process id, TP rank) of every rank that lives."""
        for entry in Path("/proc").iterdir():
            found = re.match(r"sglang::scheduler_TP(\d+)", _title(entry)) if entry.name.isdigit() else None
            if found and _process_namespace(entry) in self.namespaces:
                yield int(entry.name), int(found[1])


def _title(process: Path) -> str:
    """'' for one that has gone meanwhile, or is a zombie."""
    try:
        return (process / "cmdline").read_text("utf-8", "replace")
    except OSError:
        return ""


def _process_namespace(process: Path) -> str:
    try:
        return str((process / "ns" / "pid").readlink())
    except OSError:
        return ""


if __name__ == "__main__":
    main()
