"""/dev and /proc of a node: its own devices and hardware files, and nothing that could change this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from l40s_lab import syscalls

_QUIET = syscalls.MS_NOSUID | syscalls.MS_NODEV
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


def mount_devices(devices: Path, seen: Iterable[str]) -> None:
    """Give the node its own /dev. seen: names of empty files in place of device files."""
    syscalls.mount("dev", devices, "tmpfs", syscalls.MS_NOSUID, "mode=755")
    for name in _DEVICES:
        (devices / name).touch()
        syscalls.bind(f"/dev/{name}", devices / name)
    for name in seen:
        (devices / name).parent.mkdir(exist_ok=True)
        (devices / name).touch()
    for name in ("pts", "shm"):
        (devices / name).mkdir()
    syscalls.mount("devpts", devices / "pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=620")
    syscalls.mount("shm", devices / "shm", "tmpfs", _QUIET, "mode=1777")
    for link, target in {
        "ptmx": "pts/ptmx",
        "fd": "/proc/self/fd",
        "stdin": "/proc/self/fd/0",
        "stdout": "/proc/self/fd/1",
        "stderr": "/proc/self/fd/2",
    }.items():
        (devices / link).symlink_to(target)


def cover_proc(files: Path, root: Path) -> None:
    """Mount a node's files over the /proc of its new root; the kernel allows no overlay there."""
    proc = root / "proc"
    protect(proc)
    for file in files.rglob("*"):
        place = file.relative_to(files)
        if place.parts[0] not in ("driver", "net") and file.is_file() and (proc / place).exists():
            syscalls.bind(_own_copy(file, root, place) if place.parts[0] == "sys" else file, proc / place)
    if (proc / "driver").is_dir():
        syscalls.bind(files / "driver", proc / "driver")
    if (files / "net").is_dir():
        _cover_proc_net(files / "net", root)


def protect(proc: Path) -> None:
    """Make settings of the entire machine read-only in a node; those of its own network namespace stay writable."""
    for name in ("sys", "sys/net"):
        syscalls.bind(proc / name, proc / name)
    if (proc / "sysrq-trigger").exists():
        syscalls.bind("/dev/null", proc / "sysrq-trigger")
    syscalls.mount("none", proc / "sys", flags=syscalls.MS_BIND | syscalls.MS_REMOUNT | syscalls.MS_RDONLY)


def _own_copy(file: Path, root: Path, place: Path) -> Path:
    """A setting that the lab shows can be changed by the node that it is shown on."""
    copy = root / "run/l40s-lab/proc" / place
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, copy)
    return copy


def _cover_proc_net(extra: Path, root: Path) -> None:
    """/proc/net links to each reader's own self/net, which takes no new files: mount another link over it."""
    folder = root / "run/l40s-lab/proc-net"
    shutil.copytree(extra, folder)
    for name in os.listdir("/proc/self/net"):  # noqa: PTH208
        if not (folder / name).exists():
            (folder / name).symlink_to(f"/proc/self/net/{name}")
    link = root / "run/l40s-lab/proc-net-link"
    link.symlink_to("/run/l40s-lab/proc-net")
    syscalls.cover_link(str(link), f"{root}/proc/net")
