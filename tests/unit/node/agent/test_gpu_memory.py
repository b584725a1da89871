"""GPU memory as the agent knows it: what NVML's child tells, and what is waited for."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.node.agent.agent import Agent
from orchestrator.node.engine import gpus
from orchestrator.node.look import nvml
from orchestrator.protocol.report import AgentState


def use(used_mib: int, *pids: int) -> dict[int, gpus.GpuUse]:
    return {0: gpus.GpuUse(0, used_mib << 20, tuple((pid, 1) for pid in pids))}


@pytest.mark.parametrize(
    ("answers", "error", "left"),
    [
        ([use(2180), use(2180), use(615)], "", []),
        ([use(615, 7), use(615)], "", []),
        ([use(2180)], "NVML does not answer", ["GPU 0: 2.1 GiB are in use by a process that NVML does not show"]),
    ],
)
def test_memory_is_waited_for_until_it_is_free_or_nvml_does_not_tell(
    answers: list[dict[int, gpus.GpuUse]], error: str, left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = gpus.GpuMemory([0])

    def wait(_: float) -> bool:
        memory.answer, memory.error = answers.pop(0), error
        return True

    monkeypatch.setattr(memory, "wait", wait)
    assert memory.await_free(60.0) == left
    assert not answers


class LostError(Exception):
    """As pynvml raises it."""


def driver(uuids: list[str]) -> SimpleNamespace:
    """An NVML of these GPUs; '' for a lost one."""

    def handle(index: int) -> str:
        if index >= len(uuids) or not uuids[index]:
            raise LostError("GPU is lost")
        return uuids[index]

    memory = SimpleNamespace(total=9, reserved=0, free=4, used=5)
    return SimpleNamespace(
        NVMLError=LostError,
        nvmlInit=lambda: None,
        nvmlMemory_v2=2,
        nvmlDeviceGetCount=lambda: len(uuids),
        nvmlDeviceGetHandleByIndex=handle,
        nvmlDeviceGetUUID=lambda one: one.encode(),
        nvmlDeviceGetMemoryInfo=lambda *_, **__: memory,
        nvmlDeviceGetComputeRunningProcesses=lambda _: (),
    )


@pytest.mark.parametrize(
    ("uuids", "error", "there"),
    [
        (["a", "b", "c"], "", {"a": 0, "b": 1, "c": 2}),
        (["a", "", "c"], "GPU 1: GPU is lost", {"a": 0, "c": 2}),
        (["a"], "GPU 1: GPU is lost", {"a": 0}),
    ],
    ids=["all", "lost", "gone"],
)
def test_every_answer_tells_which_gpu_has_which_number(
    uuids: list[str], error: str, there: dict[str, int], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver(uuids))
    monkeypatch.setattr(sys, "stdin", io.StringIO("?\n?\n"))
    nvml.run(["0", "1"])
    memory = gpus.GpuMemory([0, 1])
    for line in capsys.readouterr().out.splitlines():
        memory._understand(json.loads(line), 1.0)
        assert (memory.error, memory.uuids, memory.answer is None) == (error, there, bool(error))
        assert memory.least_free() == (None if error else 4), "as NVML has it: what the driver keeps is not free"


def test_an_agent_keeps_the_least_of_its_run_and_nothing_before_and_after_the_engine() -> None:
    told: list[int] = []
    agent: Any = SimpleNamespace(
        memory=gpus.GpuMemory([0]),
        engine=(0, 0),
        state=AgentState.STARTING,
        _least_free=None,
        record=SimpleNamespace(set=lambda *, least_free_bytes: told.append(least_free_bytes)),
    )
    steps = ((1, (0, 0), "armed"), (9, (5, 5), "starting"), (7, (5, 5), "ready"), (8, (5, 5), "ready"))
    for free, engine, state in (*steps, (3, (5, 5), "stopping")):
        agent.memory.answer = {0: gpus.GpuUse(0, 1, free=free)}
        agent.engine, agent.state = engine, AgentState(state)
        Agent._note_least_free(agent)
    assert told == [9, 7]
