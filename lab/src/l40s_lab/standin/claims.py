"""Memory of emulated GPUs: one claim file per process and GPU, which the lab's NVML adds up.

A file `<gpu>.<pid>` holds `<bytes> <start time of the process>`; the claim of an ended process does not count.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from .title import start_time

GIB = 2**30
L40S_MIB = 46068
"""Memory of an L40S as shown by nvidia-smi."""


class Claims:
    """The memory that this process holds on one GPU, and the GPU's free memory."""

    def __init__(self, gpu: int, environment: Mapping[str, str]) -> None:
        self._gpu = gpu
        self._directory = Path(environment.get("L40S_LAB_GPU_CLAIMS", "/run/l40s-lab/gpu-claims"))
        self._total = int(environment.get("STANDIN_GPU_MIB", L40S_MIB)) * 2**20
        self._held = 0

    @property
    def held(self) -> int:
        return self._held

    def grow(self, count: float) -> None:
        """Claim this many more bytes."""
        self.hold(self._held + count)

    def hold(self, count: float) -> None:
        """Claim this many bytes in total. An unwritable claims directory is not an error."""
        self._held = int(count)
        mine = self._directory / f"{self._gpu}.{os.getpid()}"
        new = self._directory / f".{mine.name}.new"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            new.write_text(f"{self._held} {start_time(os.getpid())}\n")
            new.rename(mine)
        except OSError:
            return

    def release(self) -> None:
        try:
            (self._directory / f"{self._gpu}.{os.getpid()}").unlink(missing_ok=True)
        except OSError:
            return

    def available_gib(self) -> float:
        """Free memory of the GPU in GiB, after the claims of other processes."""
        return (self._total - self._held - self._others()) / GIB

    def total_gib(self) -> float:
        return self._total / GIB

    def _others(self) -> int:
        return sum(
            _living_claim(path) for path in self._directory.glob(f"{self._gpu}.*") if path.suffix != f".{os.getpid()}"
        )


def _living_claim(path: Path) -> int:
    try:
        count, started = (int(word) for word in path.read_text(encoding="utf-8").split())
        pid = int(path.suffix[1:])
    except (OSError, ValueError):
        return 0
    return count if start_time(pid) == started else 0


def visible_gpu(position: int, environment: Mapping[str, str]) -> int | None:
    """The GPU that CUDA shows at this position; None if CUDA_VISIBLE_DEVICES is shorter.

    As with CUDA, the list ends before its first entry that is not an index.
    """
    shown = environment.get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        return position
    indices: list[int] = []
    for word in shown.split(","):
        if not word.strip().isdigit():
            break
        indices.append(int(word))
    return indices[position] if position < len(indices) else None
