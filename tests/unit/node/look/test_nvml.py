"""NVML queried in a child process: a wedged driver, a missing function, a lost GPU."""

# ruff: noqa: N802, N815 - NVML's own names

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.support.waiting import slack

from orchestrator.node import processes, supervision
from orchestrator.node.look.nvml import NvmlChild, everything, sensors


def killed() -> object:
    os.kill(os.getpid(), signal.SIGSEGV)
    return {}


def failing() -> object:
    raise SystemExit(7)


def test_the_child_s_answer() -> None:
    assert NvmlChild(lambda: {"driver": "570"}).answer(20) == {"driver": "570"}


def test_a_child_that_hangs_costs_its_deadline_and_holds_nothing_of_ours() -> None:
    started = time.monotonic()
    ours, theirs = os.pipe()
    question = NvmlChild(lambda: time.sleep(60))
    os.close(theirs)
    assert select.select([ours], [], [], 10 * slack())[0] and os.read(ours, 1) == b""
    os.close(ours)
    assert question.answer(0.2) == {"error": "NVML did not respond within 0.2 s; the driver may hang"}
    assert time.monotonic() - started < 10 * slack()


def test_a_child_without_a_processor_tells_nothing_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    question = NvmlChild(lambda: time.sleep(60))
    runnable = processes.Process(pid=1, parent=0, start=0, state="R", exit_code=0)
    with monkeypatch.context() as busy:
        busy.setattr(processes, "read", lambda _: runnable)
        busy.setattr(supervision, "processor_s", lambda _: 0.0)
        said = question.answer(0.2)
    assert said == {"error": "NVML did not respond within 0.2 s: the machine is too busy", "unread": "ETIMEDOUT"}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (failing, "ended with status 1 and no answer"),
        (killed, "ended with status -11 and no answer"),
        (list, "did not return an object"),
    ],
)
def test_a_child_that_says_nothing_useful(query: Callable[[], object], words: str) -> None:
    assert words in NvmlChild(query).answer(20)["error"]


class NVMLError(Exception):
    pass


class FakeNvml(ModuleType):
    """Two GPUs; functions not defined here are missing, as in an old pynvml."""

    NVMLError = NVMLError
    nvmlMemory_v2 = 2

    def __init__(self, lost: int | None = None) -> None:
        super().__init__("fake")
        self.lost = lost

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"570.86.10"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == self.lost:
            raise NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA L40S"

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=f"00000000:1{handle}:00.0".encode())

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int | None = None) -> Any:
        if version == 2 and handle == 1:
            raise NVMLError("Function Not Found")
        return SimpleNamespace(total=100, reserved=5, free=90, used=5)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=41, usedGpuMemory=None)]

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        return kind * 10

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:
        return 10

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, which: int) -> int:
        return which


def test_what_a_device_gives_and_what_it_lacks() -> None:
    said = everything(FakeNvml())
    first, _ = said["devices"]
    assert said["driver"] == "570.86.10"
    assert (first["name"], first["pci_bus_id"]) == ("NVIDIA L40S", "00000000:10:00.0")
    assert first["memory"] == {"total": 100, "reserved": 5, "free": 90, "used": 5}
    assert first["processes"] == [{"pid": 41, "used_bytes": None}]
    assert first["ecc"] == {"enabled": None, "corrected": 0, "uncorrected": 10}
    assert first["topology"] == {"1": 10} and first["p2p"] == {"1": {"read": 0, "write": 1}}
    assert first["errors"]["nvmlDeviceGetUUID"] == "not in this pynvml"
    assert first["uuid"] is None


def test_the_first_form_of_memory_stands_in_for_the_second() -> None:
    second = everything(FakeNvml())["devices"][1]
    assert second["memory"] == {"total": 100, "free": 90, "used": 5}
    assert second["errors"]["nvmlDeviceGetMemoryInfo_v2"] == "NVMLError: Function Not Found"


def test_a_lost_gpu_is_told_and_the_other_answers() -> None:
    said = everything(FakeNvml(lost=0))
    lost, other = said["devices"]
    assert lost == {"index": 0, "errors": {"nvmlDeviceGetHandleByIndex": "NVMLError: GPU is lost"}}
    assert other["name"] == "NVIDIA L40S" and other["topology"] == {}
    assert "nvmlDeviceGetHandleByIndex(0)" not in said["errors"]


class WithNvLink(FakeNvml):
    """As an H200 in a virtual machine answers, with fewer links; the second one is down."""

    def __init__(self, links: int, fails: str = "Invalid Argument") -> None:
        super().__init__()
        self.links = links
        self.fails = fails

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if link >= self.links:
            raise NVMLError(self.fails)
        return int(link != 1)

    def nvmlDeviceGetNvLinkCapability(self, handle: int, link: int, capability: int) -> int:
        return int(capability == 0)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Any:
        return SimpleNamespace(busId=b"FFFFFFFF:FF:FF.0", busIdLegacy=b"FFFFFFF:FF:FF.0")


def test_nvlinks_as_nvml_has_them() -> None:
    first, _ = everything(WithNvLink(3))["devices"]
    up = {"active": 1, "p2p": 1, "remote": "FFFFFFF:FF:FF.0"}
    assert first["nvlinks"] == [{"link": 0, **up}, {"link": 1, "active": 0, "p2p": None, "remote": None},
                                {"link": 2, **up}]  # fmt: skip
    assert "nvmlDeviceGetNvLinkState" not in first["errors"]


def test_a_gpu_without_nvlink_and_a_library_without_the_function_say_why() -> None:
    first, _ = everything(WithNvLink(0, fails="Not Supported"))["devices"]
    assert first["nvlinks"] == [] and first["errors"]["nvmlDeviceGetNvLinkState"] == "NVMLError: Not Supported"
    first, _ = everything(FakeNvml())["devices"]
    assert first["nvlinks"] == [] and first["errors"]["nvmlDeviceGetNvLinkState"] == "not in this pynvml"


def test_a_gpu_tells_what_it_can_and_a_lost_one_why_not() -> None:
    told = sensors(FakeNvml(lost=0))
    lost, other = told["gpus"]
    assert lost == {"index": 0, "error": "NVMLError: GPU is lost"}
    assert (other["name"], other["memory_used_bytes"], other["ecc_uncorrected"]) == ("NVIDIA L40S", 5, 10)
    assert other["sm_clock_mhz"] is None and other["temperature_c"] is None
    assert told["processes"] == [None, [[41, 0]]] and told["indices"] == {}
