"""One node of a lab: its own namespaces and an overlay root. At level 1, with our PID 1 and a real sshd."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from l40s_lab import syscalls
from l40s_lab.life.blueprint import Blueprint, Show
from l40s_lab.life.levels import session_limits
from l40s_lab.namespaces import kernel_files, links
from l40s_lab.namespaces.layers import Shared
from l40s_lab.node import files as node_files
from l40s_lab.processes import reap_for_ever

_OWN = syscalls.CLONE_NEWNET | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWIPC
_QUIET = syscalls.MS_NOSUID | syscalls.MS_NODEV
_SEPARATE = ("/usr", "/var", "/opt", "/home", "/srv")
"""Directories that are often separate file systems, which an overlay of / does not include."""
_HOSTS_ALONE = (syscalls.CAP_SYS_TIME, syscalls.CAP_SYS_MODULE)
"""Clock and kernel belong to this machine: nodes may not set the one or load modules into the other."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_DISK_SIZE = "size=50%"
"""Share of this machine's memory, as is the default of tmpfs(5); also for a disk that was full before a reboot."""
DISK = "disk"
"""Name below /run/l40s-lab of the file system for writes to the node's root, so that a fault can fill it."""


class Node:
    """Used on both sides of the fork: the supervisor starts it and releases it, the child becomes the node."""

    separate: tuple[str, ...] = _SEPARATE
    """Directories that may be separate file systems."""

    def __init__(self, blueprint: Blueprint, index: int, shared: Shared) -> None:
        self.blueprint = blueprint
        self.index = index
        self.name = blueprint.nodes[index]
        self.shared = shared
        self.pid = 0
        self._apart, self._tell_apart = os.pipe2(os.O_CLOEXEC)
        self._go, self._tell_go = os.pipe2(os.O_CLOEXEC)
        self._built, self._tell_built = os.pipe2(os.O_CLOEXEC)

    def insert_disk(self) -> None:
        """Supervisor: create the disk for writes to the node's root; it outlives the node until it is removed."""
        if os.path.ismount(self._disk):
            syscalls.mount("none", self._disk, flags=syscalls.MS_REMOUNT, options=_DISK_SIZE)
            return
        self._disk.mkdir(parents=True, exist_ok=True)
        syscalls.mount(self.name, self._disk, "tmpfs", options=f"mode=755,{_DISK_SIZE}")

    def was_started(self, pid: int) -> None:
        """Supervisor: wait until the child, this process, has its own network namespace."""
        self.pid = pid
        os.close(self._tell_apart)
        os.close(self._tell_built)
        if not os.read(self._apart, 1):
            raise OSError(f"{self.name} ended before it had its namespaces")

    def let_go(self) -> None:
        """Supervisor: its interfaces exist now, it may continue."""
        os.write(self._tell_go, b"g")

    def is_built(self) -> bool:
        """Supervisor: wait until the node is ready; False if it ended before."""
        return bool(os.read(self._built, 1))

    def live(self) -> None:
        """Child: become the node; never returns."""
        os.close(self._tell_go)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        syscalls.unshare(_OWN)
        os.write(self._tell_apart, b"a")
        self._build_root()
        if not os.read(self._go, 1):
            raise OSError("the supervisor ended")
        links.configure(self.shared.machines[self.index], self.blueprint.gateway)
        self._enter_root()
        for capability in _HOSTS_ALONE:
            syscalls.drop_capability(capability)
        self._boot()

    def _boot(self) -> NoReturn:
        start_sshd(session_limits(self.shared.machines[self.index].machine.system))
        os.write(self._tell_built, b"b")
        reap_for_ever()

    @property
    def _disk(self) -> Path:
        return self.shared.disk(self.index)

    @property
    def _root(self) -> Path:
        return self._disk / "root"

    def _build_root(self) -> None:
        own = self._disk
        for folder in ("upper", "work", "root", "sys"):
            (own / folder).mkdir(exist_ok=True)
        overlay(self.shared.root_layers(self.index), self._root, upper=own / "upper", work=own / "work")
        for place in self.separate:
            if os.path.ismount(place):
                self._overlay_submount(place, own)
        self._mount_kernel_files(own)
        self._mount_devices()
        syscalls.mount("run", self._root / "run", "tmpfs", _QUIET, "mode=755")
        syscalls.mount("tmp", self._root / "tmp", "tmpfs", _QUIET, "mode=1777")
        self._hide_home()
        self._show_all()
        self._write_run()

    def _mount_devices(self) -> None:
        kernel_files.mount_devices(self._root / "dev", node_files.devices(self.shared.machines[self.index]))

    def _hide_home(self) -> None:
        """Hide the start-up files of this machine's root user from the nodes."""
        syscalls.mount("root", self._root / "root", "tmpfs", _QUIET, "mode=700")

    def _overlay_submount(self, place: str, own: Path) -> None:
        name = place.strip("/")
        upper, work = own / f"upper-{name}", own / f"work-{name}"
        upper.mkdir(exist_ok=True)
        work.mkdir(exist_ok=True)
        overlay(self.shared.root_layers(self.index, place), self._root / name, upper=upper, work=work)

    def _mount_kernel_files(self, own: Path, /) -> None:
        syscalls.mount("proc", self._root / "proc", "proc", _QUIET | syscalls.MS_NOEXEC)
        syscalls.mount("sysfs", own / "sys", "sysfs", _QUIET | syscalls.MS_NOEXEC)
        syscalls.mount(
            "sysfs",
            self._root / "sys",
            "overlay",
            syscalls.MS_RDONLY,
            f"lowerdir={self.shared.sys_layers(self.index)}:{own}/sys,metacopy=on,redirect_dir=on",
        )

    def _show_all(self) -> None:
        for show in self.blueprint.shows:
            self._show(show)

    def _show(self, show: Show) -> None:
        target = self._root / show.inside.lstrip("/")
        target.mkdir(parents=True, exist_ok=True)
        syscalls.bind(show.outside, target)
        flags = syscalls.MS_BIND | syscalls.MS_REMOUNT | syscalls.MS_RDONLY
        syscalls.mount("none", target, flags=flags)

    def _write_run(self) -> None:
        self._write_ssh(self._root / "run/sshd")
        (self._root / "run/lock").mkdir(mode=0o1777)
        lab = self._root / "run/l40s-lab"
        lab.mkdir()
        self._write_lab_folder(lab)
        (lab / DISK).mkdir()
        syscalls.bind(self._disk, lab / DISK)

    def _write_lab_folder(self, folder: Path) -> None:
        node_files.write_nvml_state(folder, self.shared.machines[self.index])

    def _write_ssh(self, folder: Path) -> None:
        folder.mkdir(mode=0o755)
        shutil.copy(self.blueprint.path / "nodes" / self.name / "host_key", folder / "host_key")
        (folder / "host_key").chmod(0o600)
        shutil.copy(self.blueprint.path / "client.pub", folder / "authorized_keys")
        (folder / "config").write_text(node_files.sshd_config(self.blueprint.address(self.index), self.blueprint.port))

    def _enter_root(self) -> None:
        socket.sethostname(self.name)
        old = self._root / ".old"
        old.mkdir(exist_ok=True)
        self._cover_proc()
        syscalls.pivot_root(self._root, ".old")
        Path("/.old").rmdir()

    def _cover_proc(self) -> None:
        kernel_files.cover_proc(self.shared.proc_files(self.index), self._root)


def start_sshd(limits: Mapping[int, int]) -> None:
    """Level 1's SSH server, on the node that this process is in. limits: of its sessions, by resource"""
    for kind, value in limits.items():
        resource.setrlimit(kind, (value, value))
    with open("/var/log/sshd.log", "ab") as log:  # noqa: PTH123
        subprocess.Popen(
            ["/usr/sbin/sshd", "-D", "-e", "-f", "/run/sshd/config"],
            env={"PATH": PATH, "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def overlay(lower: str, target: Path, *, upper: Path, work: Path) -> None:
    """Mount layers; writes go to `upper`. `work` is empty and on the same file system."""
    syscalls.mount("overlay", target, "overlay", 0, f"lowerdir={lower},upperdir={upper},workdir={work}")
