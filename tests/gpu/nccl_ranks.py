"""Two real torch ranks over NCCL, one of which leaves out a collective: run by a Python that has torch.

`python nccl_ranks.py FOLDER KIND VICTIM RANK [DEVICE]` is one rank of a gang of two; FOLDER/stands-RANK says that it
has begun the step that never ends. With DEVICE cpu the same over gloo, for a rehearsal: a graph's replay is its call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

WORLD = 2
STEPS_BEFORE = 20
SIZE = 1 << 16


class Gang:
    """What a step of it is: two all-reduces and an all-gather, and then a wait for the GPU."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"
        self.values = torch.ones(SIZE, device=device)
        self.parts = torch.empty(SIZE * WORLD, device=device)

    def attention(self) -> None:
        group.all_reduce(self.values)

    def experts(self) -> None:
        group.all_reduce(self.values)

    def logits(self) -> None:
        group.all_gather_into_tensor(self.parts, self.values)

    def forward(self) -> None:
        self.attention()
        self.experts()
        self.logits()

    def less(self) -> None:
        """One collective is missing."""
        self.attention()
        self.logits()

    def finished(self) -> None:
        """As an engine waits for what a step has computed."""
        if self.cuda:
            done = torch.cuda.Event()
            done.record()
            done.synchronize()

    def captured(self, work: Callable[[], None]) -> Any:
        """A CUDA graph of it."""
        if not self.cuda:
            return Called(work)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph


class Called:
    """In the place of a graph."""

    def __init__(self, replay: Callable[[], None]) -> None:
        self.replay = replay


def main(folder: Path, kind: str, victim: int, rank: int, device: str) -> None:
    """Some healthy steps, then the victim does less, and both go on."""
    if device == "cuda":
        torch.cuda.set_device(rank)
    long, backend = timedelta(hours=1), "nccl" if device == "cuda" else "gloo"
    group.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=WORLD, timeout=long)
    gang = Gang(device)
    gang.forward()
    gang.finished()
    whole = gang.captured(gang.forward)
    less = gang.captured(gang.less if rank == victim else gang.forward)
    steps = {
        "eager": (gang.forward, gang.less),
        "in a graph": (whole.replay, less.replay),
        "a replay": (whole.replay, lambda: None),
    }
    healthy, other = steps[kind]
    for _ in range(STEPS_BEFORE):
        healthy()
        gang.finished()
    (folder / f"stands-{rank}").touch()
    last = other if rank == victim else healthy
    last()
    gang.finished()
    while True:
        gang.logits() if kind == "a replay" else healthy()
        gang.finished()


if __name__ == "__main__":
    import torch
    import torch.distributed as group

    place, what, who, number = sys.argv[1:5]
    main(Path(place), what, int(who), int(number), sys.argv[5] if len(sys.argv) > 5 else "cuda")
