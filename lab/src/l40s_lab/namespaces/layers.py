"""Files that a lab's nodes show in place of the host's: written once, in memory, before the nodes start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from l40s_lab import syscalls
from l40s_lab.hardware import procfs, sysfs
from l40s_lab.hardware.machine import NodeMachine
from l40s_lab.life.blueprint import Blueprint
from l40s_lab.life.machines import machine_of
from l40s_lab.node import files as node_files
from l40s_lab.node import tree
from l40s_lab.node.tree import FileTree

MEMORY = "memory"
"""Directory of the lab where its tmpfs is mounted; on the host it is empty."""
_REFUSES_READING = "/devices/virtual/net/lo/speed"
"""The loopback device has no speed: reading it gives EINVAL, as for an empty GID slot's type."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Prepared by the supervisor for its nodes.

    machines: node index -> its machine
    rootfs:   the real root below the nodes' layers
    """

    memory: Path
    machines: dict[int, NodeMachine]
    rootfs: str = "/"

    def sys_layers(self, index: int) -> str:
        """Layers above the real /sys of a node, uppermost first, the order that overlayfs expects."""
        return f"{self.memory}/sys/{index}:{self.memory}/sys/common"

    def root_layers(self, index: int, place: str = "") -> str:
        """Layers above the real root, or above one directory of it; the real one comes last."""
        ours = [f"{self.memory}/root/{name}{place}" for name in (str(index), "common")]
        return ":".join([*(layer for layer in ours if Path(layer).is_dir()), place or self.rootfs])

    def disk(self, index: int) -> Path:
        """Where this node's writes to its root go; a file system of its own."""
        return self.memory / "nodes" / str(index)

    def proc_files(self, index: int) -> Path:
        """Directory of the files that are mounted over this node's /proc."""
        return self.memory / "proc" / str(index)


def prepare(blueprint: Blueprint) -> Shared:
    """Write every node's machine into a tmpfs that only the lab sees; with real GPUs, only the node's names."""
    memory = blueprint.path / MEMORY
    syscalls.mount("lab", memory, "tmpfs", syscalls.MS_NOSUID, "mode=755")
    machines = {index: machine_of(blueprint, index) for index in range(len(blueprint.nodes))}
    _write_layers(memory / "root", [node_files.render(blueprint, one) for one in machines.values()])
    if blueprint.devices:
        return Shared(memory, machines, blueprint.rootfs)
    _write_layers(memory / "sys", [sysfs.render(one) for one in machines.values()], hidden=_host_hardware())
    for index, one in machines.items():
        tree.write(procfs.render(one), memory / "proc" / str(index))
    return Shared(memory, machines, blueprint.rootfs)


def write_sys(folder: Path, machine: NodeMachine) -> None:
    """Write one machine's /sys as a separate layer above the real one, for a running node."""
    layer = sysfs.render(machine)
    layer.hidden |= _needed(_host_hardware(), layer)
    folder.mkdir(parents=True)
    tree.write_layer(layer, folder, einval_from=_REFUSES_READING)


def _write_layers(folder: Path, trees: list[FileTree], hidden: set[str] | None = None) -> None:
    common, own = tree.split_common(trees)
    common.hidden |= _needed(hidden or set(), common)
    for name, layer in [("common", common), *((str(index), one) for index, one in enumerate(own))]:
        (folder / name).mkdir(parents=True)
        tree.write_layer(layer, folder / name, einval_from=_REFUSES_READING)


def _needed(hidden: set[str], layer: FileTree) -> set[str]:
    """Hidden paths that the layer does not already replace or cover; in an opaque directory a whiteout would be
    visible."""
    return {
        path
        for path in hidden - layer.links.keys() - layer.opaque
        if not any(path.startswith(f"{folder}/") for folder in layer.opaque)
    }


def _host_hardware() -> set[str]:
    """Paths below /sys of this machine's own PCI devices, or of links to them."""
    return {path.removeprefix("/sys") for path in (*_host_buses(), *_links_into_host_buses())}


def _host_buses() -> Iterator[str]:
    yield from (f"/sys/devices/{name}" for name in os.listdir("/sys/devices") if name.startswith("pci"))  # noqa: PTH208


def _links_into_host_buses() -> Iterator[str]:
    for kind in ("class", "bus", "block"):
        top = f"/sys/{kind}"
        for folder in _folders_of_links(top, kind):
            for entry in os.scandir(folder):
                if entry.is_symlink() and "/devices/pci" in os.readlink(entry.path):  # noqa: PTH115
                    yield entry.path


def _folders_of_links(top: str, kind: str) -> Iterator[str]:
    if kind == "block":
        yield from [top] if os.path.isdir(top) else []  # noqa: PTH112
        return
    for entry in os.scandir(top):
        if entry.name == "net":
            continue  # depends on the reader's own network namespace
        folder = f"{entry.path}/devices" if kind == "bus" else entry.path
        if os.path.isdir(folder):  # noqa: PTH112
            yield folder
