"""Whole logs of real engines through the adapters' patterns, read as a node agent reads them.

logs/sglang-0.5.23-cpu, vllm-0.32.0-cpu: on CPU; `worker-killed` two nodes with one rank each: it came up, answered, and
then the worker's scheduler was killed with SIGKILL; the others one node. Only warnings of Python packages and routes
are left out, and paths shortened.
logs/sglang-0.5.17-triton: on one H200, started with --enable-torch-compile; paths shortened.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.engines.registry import dialect
from orchestrator.node.engine.watch import LogWatch

LOGS = Path(__file__).parent / "logs"
STACKS = {
    "sglang-0.5.23-cpu": ("sglang-0.5", "0.5.23"),
    "sglang-0.5.17-triton": ("sglang-0.5", "0.5.17"),
    "vllm-0.32.0-cpu": ("vllm-0.3x", "0.32.0"),
}
"""Dialect and version of whose logs are in the folder of this name."""
SGLANG, COMPILED, VLLM = STACKS


def watched(stack: str, name: str, until: str = "") -> tuple[LogWatch, list[str]]:
    """The watch after all lines, or after the first that has these words, and the phases it went through."""
    family, version = STACKS[stack]
    watch, phases = LogWatch.of(dialect(family).engine(version).watch()), []
    watch.begin(0.0)
    for line in re.split(r"[\r\n]+", (LOGS / stack / name).read_bytes().decode()):
        watch.feed(line, 0.0)
        if watch.phase.name not in phases:
            phases.append(watch.phase.name)
        if until and until in line:
            break
    return watch, phases


@pytest.mark.parametrize(
    ("stack", "name", "phases"),
    [
        (SGLANG, "worker-killed.leader.log", ["rendezvous", "weights", "kv-cache", "warm-up", "ready"]),
        (SGLANG, "worker-killed.worker.log", ["rendezvous", "weights", "kv-cache"]),  # the leader alone shows more
        (VLLM, "worker-killed.leader.log", ["rendezvous", "nccl", "weights", "kv-cache", "warm-up", "ready"]),
        (VLLM, "worker-killed.worker.log", ["rendezvous", "nccl", "weights", "kv-cache"]),
    ],
)
def test_the_phases_of_a_life(stack: str, name: str, phases: list[str]) -> None:
    assert watched(stack, name)[1] == phases


def test_the_shards_are_counted() -> None:
    phase = watched(SGLANG, "worker-killed.leader.log", "| 1/1 [")[0].phase
    assert (phase.name, phase.step, phase.of) == ("weights", 1, 1)


def test_a_healthy_life_looks_like_no_failure() -> None:
    assert watched(SGLANG, "worker-killed.leader.log", 'GET /health HTTP/1.1" 200 OK')[0].suspect(0.0) is None


@pytest.mark.parametrize(
    ("stack", "name", "cause"),
    [
        (SGLANG, "worker-killed.leader.log", ("PEER-LOST", True)),
        (SGLANG, "worker-killed.worker.log", None),  # SIGKILL leaves no line: the process's death tells
        (COMPILED, "torch-compile.log", ("KERNEL-COMPILE", False)),  # no lack of memory
        (VLLM, "worker-killed.leader.log", None),  # it notices nothing, and /health stays 200
        (VLLM, "worker-killed.worker.log", ("CHILD-FAILED", True)),
        (VLLM, "core-killed.log", ("CHILD-FAILED", True)),
        (VLLM, "flag-unknown.log", ("FLAG-REFUSED", False)),
        (VLLM, "flag-refused.log", ("FLAG-REFUSED", False)),  # a length that the model does not have
        (VLLM, "flag-value.log", ("FLAG-REFUSED", False)),
        (VLLM, "port-taken.log", ("PORT-IN-USE", False)),
        (VLLM, "file-cut.log", ("SHARD-CORRUPT", False)),
    ],
)
def test_what_a_log_says_of_a_failure(stack: str, name: str, cause: tuple[str, bool] | None) -> None:
    found = watched(stack, name)[0].suspect(0.0)
    assert (found and (found.id, found.secondary)) == cause
