"""The real GPUs of this machine, shared out among a lab's nodes as for containers.

A node sees the GPUs whose device files it has: the driver's libraries open /dev/nvidiaN for every GPU and skip missing
ones. They would create missing files themselves, unless /proc/driver/nvidia/params says `ModifyDeviceFiles: 0` (NVIDIA
driver README, chapter 'Common problems', on NVreg_ModifyDeviceFiles).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.protocol.errors import InputError, NodeError

PARAMETERS = "/proc/driver/nvidia/params"
"""The driver's load parameters; its libraries read there whether they may create device files."""
VENVS = "/opt/l40s/venvs"
MODELS = "/workspace"
NETWORK: dict[str, Any] = {
    "summary": "this machine's own GPUs, shared out; one 10 Gb/s port for everything",
    "primary": "eth0",
    "roots": [
        {
            "bus": 0,
            "numa": 0,
            "ports": [{"device": 1, "card": {"nic": {"vendor": 0x1AF4, "ports": [{"netdev": "eth0", "gbps": 10}]}}}],
        }
    ],
}
"""Machine for a node's network: only its interfaces are ever shown, the rest is this machine's."""
_GPU = re.compile(r"nvidia(\d+)")
_OF_ALL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_CAPABILITIES = "nvidia-caps"
_MODIFY = re.compile(r"^(ModifyDeviceFiles:) .*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class HostGpus:
    """Device files below /dev of this machine. gpus: one for each GPU, by its number; of_all: those that all nodes
    need."""

    gpus: tuple[str, ...]
    of_all: tuple[str, ...]


def find(root: Path = Path("/")) -> HostGpus:
    """The GPUs of this machine, below a root. Raises NodeError if there are none."""
    folder = root / "dev"
    numbers = sorted(int(gpu[1]) for entry in folder.glob("nvidia*") if (gpu := _GPU.fullmatch(entry.name)))
    of_all = [folder / name for name in _OF_ALL if (folder / name).exists()]
    of_all += sorted((folder / _CAPABILITIES).glob("*"))
    if not numbers or not (folder / "nvidiactl").exists():
        seen = f"{len(numbers)} GPUs but no {folder / 'nvidiactl'}" if numbers else f"no {folder}/nvidia0"
        raise NodeError(
            f"--gpus host needs NVIDIA GPUs and their driver: found {seen}",
            where="this machine",
            fix="check `nvidia-smi`; without --gpus, the lab emulates GPUs",
        )
    return HostGpus(tuple(str(folder / f"nvidia{number}") for number in numbers), tuple(map(str, of_all)))


def share(found: HostGpus, nodes: Sequence[str], wanted: Sequence[int | None]) -> dict[str, tuple[str, ...]]:
    """Node -> its device files, its GPUs first.

    wanted: GPUs of each node; None: as many as every node can have. Raises InputError if there are too few.
    """
    equal = len(found.gpus) // len(nodes)
    counts = [equal if count is None else count for count in wanted]
    if min(counts) < 1 or sum(counts) > len(found.gpus):
        raise InputError(
            f"found {len(found.gpus)} GPUs on this machine, wanted {max(sum(counts), len(nodes))}: at least one per"
            " node",
            where="--gpus host",
            fix=f"use --nodes {len(found.gpus)}, or fewer",
        )
    rest, shared = list(found.gpus), {}
    for node, count in zip(nodes, counts, strict=True):
        shared[node] = (*rest[:count], *found.of_all)
        del rest[:count]
    return shared


def gpu_count(devices: Sequence[str]) -> int:
    """Number of GPUs among a node's device files."""
    return sum(_GPU.fullmatch(Path(device).name) is not None for device in devices)


def inside(device: str) -> str:
    """Path of a device file below a node's /dev."""
    return device.rpartition("/dev/")[2]


def without_new_files(parameters: str) -> str:
    """The driver's parameters as shown on a node, where no device files may be created."""
    return _MODIFY.sub(r"\1 0", parameters)
