"""The agent on a real NVIDIA driver: memory by rank, a GPU that somebody else holds, memory free after the end.

The engine is scripted and takes its memory through the CUDA driver; agents, NVML and GPUs are real.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.node.engine.gpus import GpuMemory, GpuUse

if TYPE_CHECKING:
    from tests.support.gang import Cluster

HELD = 2 << 30
RANKS_EACH = 2

pytestmark = pytest.mark.skipif(not Path("/dev/nvidia0").exists(), reason="no NVIDIA GPU here: no /dev/nvidia0")


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Cluster]:
    """Two agents with two ranks each, all of them on GPU 0."""
    from tests.support.gang import Cluster

    engine = {"FAKE_GPU_BYTES": str(HELD), "FAKE_GPUS": ",".join("0" * RANKS_EACH)}
    made = Cluster(
        tmp_path / "gang",
        ranks_each=RANKS_EACH,
        env={-1: engine},
        changes={-1: {"device": "cuda", "gpus": [0] * RANKS_EACH}},
    )
    yield made
    made.close()


def use_now() -> GpuUse:
    """GPU 0 as NVML tells it now."""
    memory = GpuMemory((0,))
    try:
        assert memory.wait(20.0) and memory.answer is not None, memory.error
        return memory.answer[0]
    finally:
        memory.close()


def held(gang: Cluster, node: int) -> list[int]:
    return [int(rank["gpu_memory_bytes"]) for rank in gang.report(node)["ranks"]]


def test_each_rank_shows_the_memory_that_it_holds(gang: Cluster) -> None:
    from tests.support.waiting import until

    gang.ready(60.0)
    until(lambda: min(held(gang, 0) + held(gang, 1)) >= HELD, 20.0, "memory of four ranks")
    assert max(held(gang, 0) + held(gang, 1)) < 2 * HELD, "a rank shows its own memory, not its GPU's"
    assert len(use_now().processes) == 2 * RANKS_EACH


def test_after_a_rank_died_all_memory_is_free(gang: Cluster) -> None:
    from tests.support.waiting import until

    gang.ready(60.0)
    until(lambda: min(held(gang, 0) + held(gang, 1)) >= HELD, 20.0, "memory of four ranks")
    gang.kill_rank(3)
    gang.nothing_left(20.0)
    assert use_now().processes == ()
    for node in range(gang.nodes):
        report = gang.report(node)
        assert report["state"] == "failed" and not report.get("left_behind"), report
        assert (report["verdict"]["node"], report["verdict"]["tp_rank"]) == ("node1", 3)
    assert gang.report(1)["cause"]["signal"] == 9


def test_a_gpu_that_another_process_holds_is_refused_with_its_name(gang: Cluster) -> None:
    from tests.support import fake_engine
    from tests.support.waiting import until

    squatter = subprocess.Popen(
        [sys.executable, "-c", fake_engine.RANK, "0"], env={**os.environ, "FAKE_GPU_BYTES": str(HELD)}
    )
    try:
        until(lambda: squatter.pid in [pid for pid, _ in use_now().processes], 20.0, "the other process' memory")
        gang.stage()
        answers: list[dict[str, Any]] = gang.arm_all()
    finally:
        squatter.kill()
        squatter.wait(10)
    said = str(answers)
    assert not any(answer["ok"] for answer in answers) and f"pid {squatter.pid}" in said and "gpu-busy" in said, said
    until(lambda: squatter.pid not in [pid for pid, _ in use_now().processes], 20.0, "its memory free")
    gang.nothing_left()
