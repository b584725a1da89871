"""Whole logs of real engines through the adapter's patterns, read as a node agent reads them.

logs/<stack>/worker-killed.*.log: SGLang 0.5.23 on CPU, two nodes with one rank each; it came up, answered, and then
the worker's scheduler was killed with SIGKILL. Only warnings of Python packages are left out, and paths shortened.
logs/<stack>/torch-compile.log: SGLang 0.5.17 on one H200, started with --enable-torch-compile; paths shortened.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.engines.registry import dialect
from orchestrator.node.engine.watch import LogWatch

LOGS = Path(__file__).parent / "logs"
SERVING = 'GET /health HTTP/1.1" 200 OK'


def lines(stack: str, name: str) -> list[str]:
    text = (LOGS / stack / name).read_bytes().decode()
    return [line for line in re.split(r"[\r\n]+", text) if line]


def watched(log: list[str], version: str = "0.5.23") -> tuple[LogWatch, list[str]]:
    """The watch after all lines, and the phases it went through."""
    watch, phases = LogWatch.of(dialect("sglang-0.5").engine(version).watch()), []
    watch.begin(0.0)
    for line in log:
        watch.feed(line, 0.0)
        if watch.phase.name not in phases:
            phases.append(watch.phase.name)
    return watch, phases


@pytest.mark.parametrize(
    ("node", "phases"),
    [
        ("leader", ["rendezvous", "weights", "kv-cache", "warm-up", "ready"]),
        ("worker", ["rendezvous", "weights", "kv-cache"]),  # it says no more: that it is ready shows on the leader
    ],
)
def test_the_phases_of_a_life(node: str, phases: list[str]) -> None:
    assert watched(lines("sglang-0.5.23-cpu", f"worker-killed.{node}.log"))[1] == phases


def test_the_shards_are_counted() -> None:
    log = lines("sglang-0.5.23-cpu", "worker-killed.leader.log")
    loaded = next(place for place, line in enumerate(log) if "| 1/1 [" in line)
    phase = watched(log[: loaded + 1])[0].phase
    assert (phase.name, phase.step, phase.of) == ("weights", 1, 1)


def test_a_healthy_life_looks_like_no_failure() -> None:
    log = lines("sglang-0.5.23-cpu", "worker-killed.leader.log")
    serving = next(place for place, line in enumerate(log) if SERVING in line)
    assert watched(log[:serving])[0].suspect(0.0) is None
    killed = lines("sglang-0.5.23-cpu", "worker-killed.worker.log")
    assert watched(killed)[0].suspect(0.0) is None, "SIGKILL leaves no line: the process's death tells"


def test_the_loss_of_a_peer_is_secondary() -> None:
    suspicion = watched(lines("sglang-0.5.23-cpu", "worker-killed.leader.log"))[0].suspect(0.0)
    assert suspicion is not None
    assert (suspicion.id, suspicion.secondary) == ("PEER-LOST", True)


def test_a_kernel_that_does_not_compile_is_no_lack_of_memory() -> None:
    watch, phases = watched(lines("sglang-0.5.17-triton", "torch-compile.log"), "0.5.17")
    suspicion = watch.suspect(0.0)
    assert phases[-1] == "graphs"
    assert suspicion is not None
    assert (suspicion.id, suspicion.secondary) == ("KERNEL-COMPILE", False)
