from __future__ import annotations

from pathlib import Path

import pytest

from l40s_lab.node import host_gpus
from orchestrator.model.errors import InputError, NodeError

PARAMETERS = """ResmanDebugLevel: 4294967295
RmLogonRC: 1
ModifyDeviceFiles: 1
DeviceFileUID: 0
"""
"""The first lines of /proc/driver/nvidia/params (driver 580)."""
OF_ALL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps/nvidia-cap1")


def machine(root: Path, gpus: int, of_all: tuple[str, ...] = OF_ALL) -> Path:
    for name in (*(f"nvidia{number}" for number in range(gpus)), *of_all):
        (root / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "dev" / name).touch()
    return root


def test_gpus_are_found_by_their_numbers_and_nothing_else_is_taken_for_one(tmp_path: Path) -> None:
    found = host_gpus.find(machine(tmp_path, 11))
    assert [Path(gpu).name for gpu in found.gpus] == [f"nvidia{number}" for number in range(11)]
    assert [host_gpus.inside(device) for device in found.of_all] == list(OF_ALL)


@pytest.mark.parametrize(
    ("gpus", "of_all", "words"), [(0, (), "/dev/nvidia0"), (2, (), "2 GPUs but no"), (0, OF_ALL, "nvidia0")]
)
def test_a_machine_without_gpus_or_driver_is_refused_with_what_was_found(
    tmp_path: Path, gpus: int, of_all: tuple[str, ...], words: str
) -> None:
    with pytest.raises(NodeError, match=words):
        host_gpus.find(machine(tmp_path, gpus, of_all))


def shared(root: Path, gpus: int, wanted: list[int | None]) -> dict[str, list[str]]:
    nodes = [f"node{number}" for number in range(len(wanted))]
    found = host_gpus.share(host_gpus.find(machine(root, gpus)), nodes, wanted)
    return {node: [host_gpus.inside(device) for device in devices] for node, devices in found.items()}


@pytest.mark.parametrize(
    ("gpus", "wanted", "expected"),
    [
        (4, [None] * 4, [["0"], ["1"], ["2"], ["3"]]),
        (4, [None] * 2, [["0", "1"], ["2", "3"]]),
        (5, [None] * 2, [["0", "1"], ["2", "3"]]),
        (4, [3, 1], [["0", "1", "2"], ["3"]]),
    ],
)
def test_each_gpu_belongs_to_one_node_and_all_have_the_drivers_own_files(
    tmp_path: Path, gpus: int, wanted: list[int | None], expected: list[list[str]]
) -> None:
    nodes = list(shared(tmp_path, gpus, wanted).values())
    assert nodes == [[*(f"nvidia{number}" for number in own), *OF_ALL] for own in expected]
    assert [host_gpus.gpu_count([f"/dev/{name}" for name in node]) for node in nodes] == [len(own) for own in expected]


@pytest.mark.parametrize("wanted", [[None] * 5, [3, 2], [4, 0]])
def test_too_few_gpus_are_refused(tmp_path: Path, wanted: list[int | None]) -> None:
    with pytest.raises(InputError, match="found 4 GPUs on this machine"):
        shared(tmp_path, 4, wanted)


def test_the_driver_makes_no_device_files_in_a_node() -> None:
    shown = host_gpus.without_new_files(PARAMETERS)
    assert shown == PARAMETERS.replace("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0")
    assert host_gpus.without_new_files(shown) == shown
