"""`doctor` on four nodes as a whole process, and its analysis alone from 4 to 256 snapshots on one core.

Wanted: four nodes under 3 s; 256 snapshots (2,048 GPUs) under 2 s of CPU time, growing no faster than the nodes.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from common import command, lab, report, timed

from orchestrator.doctor.steps.recordings import Given, examine_given, load_saved
from orchestrator.model.snapshot import Snapshot

SIZES = (4, 8, 16, 32, 64, 128, 256)
RUNS = 3


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch, lab("bench-doctor") as inventory:
        hosts = ["-i", str(inventory)]
        timed(command("discover", *hosts, "--save", scratch), runs=1)
        whole = timed(command("doctor", *hosts, "--json"), runs=RUNS)
        snapshots = list(load_saved(Path(scratch)).values())
    analyse(multiplied(snapshots, SIZES[0]))  # rules are found and imported once
    seconds = {size: analysis_s(snapshots, size) for size in SIZES}
    each = seconds[SIZES[0]] / SIZES[0]
    report("doctor on 4 lab nodes, whole process, median", [("l40s-deploy doctor --json", whole, "wanted: under 3 s")])
    report(
        "analysis of snapshots: topologies, all rules; CPU time of one core, median",
        [
            (f"{size} nodes, {size * 8} GPUs", spent, f"{spent / size / each:.2f} times the smallest one's, a node")
            for size, spent in seconds.items()
        ],
    )


def analysis_s(snapshots: Sequence[Snapshot], size: int) -> float:
    """CPU seconds; snapshots are fresh each time, so that nothing is remembered of the last one."""
    spent = []
    for _ in range(RUNS):
        cluster = multiplied(snapshots, size)
        gc.collect()
        began = time.process_time()
        analyse(cluster)
        spent.append(time.process_time() - began)
    return statistics.median(spent)


def multiplied(snapshots: Sequence[Snapshot], size: int) -> dict[str, Snapshot]:
    """A cluster of this size out of a few nodes."""
    chosen = [snapshots[number % len(snapshots)] for number in range(size)]
    return {f"node{number}": replace(one, node=f"node{number}") for number, one in enumerate(chosen)}


def analyse(cluster: dict[str, Snapshot]) -> None:
    examine_given(Given(cluster))


if __name__ == "__main__":
    main()
