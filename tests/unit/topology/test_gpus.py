"""GPUs: NVML's answers joined with the bus, also if one of them gives nothing."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.machine_files import MachineFiles

from orchestrator.model.topology import Gpu, GpuProcess
from orchestrator.topology.build import build
from orchestrator.topology.gpus import AcceleratorClass

LOST = {"nvmlDeviceGetHandleByIndex": "NVMLError_GpuIsLost: GPU is lost"}


def machine(gpus: int = 3) -> MachineFiles:
    files = MachineFiles()
    upstream = files.switch(files.root_port(0x15), 0x16)
    for index in range(gpus):
        files.gpu(files.downstream(upstream, 0x17, 4 * index), 0x18 + index)
    return files


def gpus(files: MachineFiles, devices: list[dict[str, Any]] | None = None) -> tuple[Gpu, ...]:
    nvml: dict[str, Any] = {"devices": files.devices if devices is None else devices}
    return build(files.snapshot(nvml=nvml)).gpus


def test_a_lost_gpu_that_gives_no_address_is_the_one_left_on_the_bus() -> None:
    files = machine()
    files.devices[1] = {"index": 1, "errors": LOST}
    found = gpus(files)
    assert [(gpu.index, gpu.address, bool(gpu.lost)) for gpu in found] == [
        (0, "0000:18:00.0", False), (1, "0000:19:00.0", True), (2, "0000:1a:00.0", False),
    ]  # fmt: skip
    assert "GPU is lost" in found[1].lost and found[1].switch == found[0].switch


def test_a_lost_gpu_that_left_the_bus_too_has_no_place() -> None:
    files = machine()
    gone = "0000:19:00.0"
    files.files = {path: text for path, text in files.files.items() if gone not in path}
    files.links = {path: target for path, target in files.links.items() if gone not in target}
    files.devices[1] = {"index": 1, "errors": LOST}
    lost = gpus(files)[1]
    assert (lost.index, lost.address, lost.key, lost.switch) == (1, "", "nvml:1", "")
    assert lost.lost


def test_a_gpu_that_nvml_does_not_know_comes_last_with_no_index() -> None:
    files = machine()
    found = gpus(files, files.devices[:2])
    assert [(gpu.index, gpu.address) for gpu in found] == [
        (0, "0000:18:00.0"), (1, "0000:19:00.0"), (-1, "0000:1a:00.0"),
    ]  # fmt: skip


def test_without_nvml_the_bus_still_shows_gpus() -> None:
    topology = build(machine().snapshot(nvml={"error": "NVML Shared Library Not Found"}))
    assert [gpu.index for gpu in topology.gpus] == [-1, -1, -1]
    assert topology.nvml_error == "NVML Shared Library Not Found"


def test_without_sysfs_nvml_still_shows_gpus() -> None:
    files = machine()
    files.files, files.links = {}, {}
    assert [(gpu.index, gpu.address, gpu.switch) for gpu in gpus(files)] == [
        (0, "0000:18:00.0", ""), (1, "0000:19:00.0", ""), (2, "0000:1a:00.0", ""),
    ]  # fmt: skip


def test_processes_and_what_is_used() -> None:
    files = machine(1)
    files.devices[0] |= {
        "processes": [{"pid": 41, "used_bytes": 7}, {"pid": 42, "used_bytes": None}, "nonsense"],
        "memory": {"total": 100, "used": 7},
    }
    (gpu,) = gpus(files)
    assert gpu.processes == (GpuProcess(pid=41, memory_bytes=7), GpuProcess(pid=42, memory_bytes=0))
    assert (gpu.memory_total, gpu.memory_used) == (100, 7)


def test_other_accelerators_count_where_the_caller_says_so() -> None:
    files = MachineFiles()
    for bus in (0x10, 0x20):
        files.function(files.root_port(bus), f"0000:{bus + 1:02x}:00.0", ("0x1bcf", "0x001c", "0x0b4000", "0x0001"))
    assert gpus(files) == ()
    options = (AcceleratorClass(0x0B40, 0x1BCF),)
    found = build(files.snapshot(nvml={"error": "not recorded"}), options).gpus
    assert [(gpu.index, gpu.address) for gpu in found] == [(0, "0000:11:00.0"), (1, "0000:21:00.0")]


@pytest.mark.parametrize("nvml", [{"devices": None}, {"devices": "x"}, {"devices": [None, 1, {}]}, {}])
def test_nonsense_from_nvml(nvml: dict[str, Any]) -> None:
    assert len(build(machine().snapshot(nvml=nvml)).gpus) in (3, 4)


def nvlinks(said: dict[str, Any]) -> object:
    files = machine(1)
    files.devices[0] |= said
    found = gpus(files)[0].nvlinks
    return found if found is None else [(links.target, links.count, links.switch) for links in found]


def link(remote: str | None, *, active: int = 1, p2p: int | None = 1) -> dict[str, Any]:
    return {"active": active, "p2p": p2p, "remote": remote}


STATE = "nvmlDeviceGetNvLinkState"


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"nvlinks": [link("FFFFFFF:FF:FF.0")] * 18}, [("fffffff:ff:ff.0", 18, True)]),
        ({"nvlinks": [link("0000:18:00.0")] * 4}, [("0000:18:00.0", 4, False)]),
        ({"nvlinks": [link("0000:C4:00.0"), link(None, active=0), link("0000:C4:00.0", p2p=0)]},
         [("0000:c4:00.0", 1, True)]),
        ({"nvlinks": [], "errors": {STATE: "NVMLError_NotSupported: Not Supported"}}, []),
        ({"nvlinks": [], "errors": {STATE: "not in this pynvml"}}, None),
        ({"nvlinks": [], "errors": {STATE: "NVMLError_Unknown: Unknown Error"}}, None),
        ({"nvlinks": [link("0000:18:00.0", p2p=None)]}, None),
        ({"nvlinks": "18"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_nvlinks_by_their_other_end_and_unknown_where_nvml_did_not_say(said: dict[str, Any], wanted: object) -> None:
    assert nvlinks(said) == wanted


@pytest.mark.parametrize(
    ("said", "sm"), [([9, 0], 90), ([8, 9], 89), (None, 0), ([8], 0), (["8", "9"], 0), ([0, 0], 0), ("89", 0)]
)
def test_compute_capability(said: object, sm: int) -> None:
    files = machine(1)
    files.devices[0]["compute_capability"] = said
    assert gpus(files)[0].sm == sm
