"""Makes a running node show another machine than the one it was built with.

The layers of a mounted overlay must not change, so a complete new /sys is mounted over the existing one, and single
files over those of /proc. Unmounting them restores exactly what was there before.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from l40s_lab import files, syscalls
from l40s_lab.hardware import procfs
from l40s_lab.hardware.machine import NodeMachine
from l40s_lab.namespaces import layers
from l40s_lab.namespaces.mounts import Spaces, in_child, mounted_below
from l40s_lab.node import tree
from l40s_lab.syscalls import attach, clone_tree, detach

_STAGE = "/run/l40s-lab/sys"
_PROC_NET = "/run/l40s-lab/proc-net"


def cover(supervisor: int, node: int, folder: Path, built: NodeMachine, shown: NodeMachine) -> list[str]:
    """Show a machine's /sys and /proc on a running node; returns the new mount points.

    supervisor, node: process ids; folder: for files to be written, as the supervisor sees it; built: the machine that
    the node was built with
    """

    def work() -> list[str]:
        network.join()
        lab.join()
        scratch = _scratch(folder)
        tree.write(procfs.render(shown), scratch / "proc")
        over = {path: clone_tree(scratch / "proc" / path.lstrip("/")) for path in _changed_files(built, shown)}
        net = _files_below(procfs.render(shown), "/net/")
        sys = _overlay(scratch, shown)
        mounts.join()
        _put_over_sys(sys)
        for path, file in over.items():
            attach(file, f"/proc{path}")
        _write(net)
        return ["/sys", *(f"/proc{path}" for path in over)]

    with Spaces(supervisor, ["mnt"]) as lab, Spaces(node, ["net"]) as network, Spaces(node, ["mnt"]) as mounts:
        return in_child(work)


def uncover(supervisor: int, node: int, folder: Path, built: NodeMachine, covers: Iterable[str]) -> None:
    """Unmount everything that was mounted over something, last one first, and delete its files."""

    def work() -> None:
        mounts.join()
        for path in reversed(list(covers)):
            detach(path)
        _write(_files_below(procfs.render(built), "/net/"))
        lab.join()
        shutil.rmtree(folder, ignore_errors=True)

    with Spaces(supervisor, ["mnt"]) as lab, Spaces(node, ["mnt"]) as mounts:
        in_child(work)


def _scratch(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / str(sum(1 for _ in folder.iterdir()))
    scratch.mkdir()
    return scratch


def _changed_files(built: NodeMachine, shown: NodeMachine) -> Iterator[str]:
    """Files of /proc with mounts of their own; those below /proc/net are in a directory of the node."""
    before = procfs.render(built).files
    for path, content in procfs.render(shown).files.items():
        if not path.startswith("/net/") and before.get(path) != content:
            yield path


def _files_below(files: tree.FileTree, prefix: str) -> dict[str, bytes]:
    return {path.removeprefix(prefix): content for path, content in files.files.items() if path.startswith(prefix)}


def _overlay(scratch: Path, shown: NodeMachine) -> int:
    layers.write_sys(scratch / "layer", shown)
    for name in ("kernel", "sys"):
        (scratch / name).mkdir()
    syscalls.mount("sysfs", scratch / "kernel", "sysfs", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
    lower = f"lowerdir={scratch}/layer:{scratch}/kernel,metacopy=on,redirect_dir=on"
    syscalls.mount("sysfs", scratch / "sys", "overlay", syscalls.MS_RDONLY, lower)
    whole = clone_tree(scratch / "sys")
    detach(scratch / "sys")
    detach(scratch / "kernel")
    return whole


def _put_over_sys(sys: int) -> None:
    """Include what is mounted below /sys now (systemd's control groups), all in one step."""
    Path(_STAGE).mkdir(exist_ok=True)
    below = mounted_below("/sys")
    attach(sys, _STAGE)
    for point in below:
        attach(clone_tree(point), _STAGE + point.removeprefix("/sys"))
    whole = clone_tree(_STAGE)
    detach(_STAGE)
    Path(_STAGE).rmdir()
    attach(whole, "/sys")


def _write(net: dict[str, bytes]) -> None:
    for path, content in net.items():
        files.put(Path(_PROC_NET) / path, content)
