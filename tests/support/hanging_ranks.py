"""Gangs of real torch ranks over gloo, one of which comes to a stand: run by an environment that has torch.

`python hanging_ranks.py FOLDER` reads a line `KIND VICTIM WORLD` for each gang, forks its ranks, and writes their
process ids as JSON; the next line ends that gang. All gangs share one import of torch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

STEPS_BEFORE = 20


def attention(group: object) -> None:
    group.all_reduce(TENSOR)  # type: ignore[attr-defined]


def experts(group: object) -> None:
    group.all_reduce(TENSOR)  # type: ignore[attr-defined]


def logits(group: object) -> None:
    parts = [torch.empty(8) for _ in range(group.get_world_size())]  # type: ignore[attr-defined]
    group.all_gather(parts, TENSOR)  # type: ignore[attr-defined]


def forward(group: object) -> None:
    attention(group)
    experts(group)
    logits(group)


def skips(folder: Path, group: object) -> None:
    logits(group)


def sleeps(folder: Path, group: object) -> None:
    time.sleep(3600)


def computes(folder: Path, group: object) -> None:
    end = time.time() + 3600
    while time.time() < end:
        sum(range(1000))


def waits_for_a_disk(folder: Path, group: object) -> None:
    """In state D: its child waits for a file before it executes anything (vfork(2))."""
    pipe = folder / f"disk{os.getpid()}"
    os.mkfifo(pipe)
    actions = [(os.POSIX_SPAWN_OPEN, 0, str(pipe), os.O_RDONLY, 0)]
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=actions)


def reads(folder: Path, group: object) -> None:
    pipe = folder / f"file{os.getpid()}"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)
    os.read(writer, 1)


def stops(folder: Path, group: object) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


KINDS = {one.__name__: one for one in (skips, sleeps, computes, waits_for_a_disk, reads, stops)}


def rank(folder: Path, number: int, kind: str, victim: int, world: int) -> None:
    """One rank: some healthy steps, then the victim says that it has arrived where it does what it is for, and the
    others make their next step."""
    import torch.distributed as group

    store = f"file://{folder}/store-{kind}-{victim}"
    long = timedelta(hours=1)
    group.init_process_group("gloo", init_method=store, rank=number, world_size=world, timeout=long)
    for _ in range(STEPS_BEFORE):
        forward(group)
    if number == victim:
        if kind != "computes":
            attention(group)
        (folder / f"arrived{os.getpid()}").touch()
        KINDS[kind](folder, group)
    while True:
        forward(group)


def main(folder: Path) -> None:
    """Gang after gang."""
    print("up", flush=True)
    pids: list[int] = []
    for line in sys.stdin:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
        kind, victim, world = line.split()
        if kind == "end":
            return
        pids = []
        for number in range(int(world)):
            pid = os.fork()
            if pid == 0:
                rank(folder, number, kind, int(victim), int(world))
            pids.append(pid)
        print(json.dumps(pids), flush=True)


if __name__ == "__main__":
    import torch
    import torch.distributed  # once, before all forks

    torch.set_num_threads(1)
    TENSOR = torch.ones(8)
    main(Path(sys.argv[1]))
