"""One node of a level-1 lab: PID 1 of its own namespaces, an overlay of this machine's root, and a real sshd."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from orchestrator.lab import node_files, syscalls
from orchestrator.lab.blueprint import Blueprint
from orchestrator.lab.namespaces import links
from orchestrator.lab.namespaces.layers import Shared
from orchestrator.lab.processes import reap_for_ever

_OWN = syscalls.CLONE_NEWNET | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWIPC
_QUIET = syscalls.MS_NOSUID | syscalls.MS_NODEV
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_SEPARATE = ("/usr", "/var", "/opt", "/home", "/srv")
"""Directories that are often file systems of their own, which an overlay of / does not contain."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Node:
    """Used on both sides of the fork: the supervisor starts it and lets it go, the child lives it."""

    def __init__(self, blueprint: Blueprint, index: int, shared: Shared) -> None:
        self.blueprint = blueprint
        self.index = index
        self.name = blueprint.nodes[index]
        self.shared = shared
        self._apart, self._tell_apart = os.pipe2(os.O_CLOEXEC)
        self._go, self._tell_go = os.pipe2(os.O_CLOEXEC)
        self._built, self._tell_built = os.pipe2(os.O_CLOEXEC)

    def was_started(self) -> None:
        """Supervisor: wait until the child has its own network namespace."""
        os.close(self._tell_apart)
        os.close(self._tell_built)
        if not os.read(self._apart, 1):
            raise OSError(f"{self.name} ended before it had its namespaces")

    def let_go(self) -> None:
        """Supervisor: its interfaces are there."""
        os.write(self._tell_go, b"g")

    def is_built(self) -> bool:
        """Supervisor: wait until its sshd has been started; False when it ended before."""
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
        self._set_limits()
        self._start_sshd()
        os.write(self._tell_built, b"b")
        reap_for_ever()

    @property
    def _root(self) -> Path:
        return self.shared.memory / "nodes" / str(self.index) / "root"

    def _build_root(self) -> None:
        own = self._root.parent
        own.mkdir(parents=True)
        syscalls.mount(self.name, own, "tmpfs", options="mode=755")
        for folder in ("upper", "work", "root", "sys"):
            (own / folder).mkdir()
        _overlay(self.shared.root_layers(self.index), self._root, upper=own / "upper", work=own / "work")
        for place in _SEPARATE:
            if os.path.ismount(place):
                self._overlay_submount(place, own)
        self._mount_kernel_files(own)
        _mount_devices(self._root / "dev", node_files.devices(self.shared.machines[self.index]))
        syscalls.mount("run", self._root / "run", "tmpfs", _QUIET, "mode=755")
        syscalls.mount("tmp", self._root / "tmp", "tmpfs", _QUIET, "mode=1777")
        syscalls.mount("root", self._root / "root", "tmpfs", _QUIET, "mode=700")
        for show in self.blueprint.shows:
            self._show(show.outside, show.inside)
        self._write_run()

    def _overlay_submount(self, place: str, own: Path) -> None:
        name = place.strip("/")
        upper, work = own / f"upper-{name}", own / f"work-{name}"
        upper.mkdir()
        work.mkdir()
        _overlay(self.shared.root_layers(self.index, place), self._root / name, upper=upper, work=work)

    def _mount_kernel_files(self, own: Path) -> None:
        syscalls.mount("proc", self._root / "proc", "proc", _QUIET | syscalls.MS_NOEXEC)
        syscalls.mount("sysfs", own / "sys", "sysfs", _QUIET | syscalls.MS_NOEXEC)
        syscalls.mount(
            "sysfs",
            self._root / "sys",
            "overlay",
            syscalls.MS_RDONLY,
            f"lowerdir={self.shared.sys_layers(self.index)}:{own}/sys,metacopy=on,redirect_dir=on",
        )

    def _show(self, outside: str, inside: str) -> None:
        target = self._root / inside.lstrip("/")
        target.mkdir(parents=True, exist_ok=True)
        syscalls.bind(outside, target)
        flags = syscalls.MS_BIND | syscalls.MS_REMOUNT | syscalls.MS_RDONLY
        syscalls.mount("none", target, flags=flags)

    def _write_run(self) -> None:
        ssh = self._root / "run/sshd"
        ssh.mkdir(mode=0o755)
        shutil.copy(self.blueprint.path / "nodes" / self.name / "host_key", ssh / "host_key")
        (ssh / "host_key").chmod(0o600)
        shutil.copy(self.blueprint.path / "client.pub", ssh / "authorized_keys")
        (ssh / "config").write_text(node_files.sshd_config(self.blueprint.address(self.index), self.blueprint.port))
        (self._root / "run/lock").mkdir(mode=0o1777)
        lab = self._root / "run/l40s-lab"
        lab.mkdir()
        node_files.write_nvml_state(lab, self.shared.machines[self.index])

    def _enter_root(self) -> None:
        socket.sethostname(self.name)
        old = self._root / ".old"
        old.mkdir()
        proc_files = self.shared.proc_files(self.index)
        _cover_proc(proc_files, self._root)
        syscalls.pivot_root(self._root, ".old")
        Path("/.old").rmdir()

    def _set_limits(self) -> None:
        system = self.shared.machines[self.index].machine.system
        memlock = resource.RLIM_INFINITY if system.memlock == "unlimited" else system.memlock
        for kind, value in ((resource.RLIMIT_MEMLOCK, memlock), (resource.RLIMIT_NOFILE, system.nofile)):
            with suppress(ValueError, OSError):  # a container's own hard limit stays
                resource.setrlimit(kind, (value, value))

    def _start_sshd(self) -> None:
        with Path("/var/log/sshd.log").open("wb") as log:
            subprocess.Popen(
                ["/usr/sbin/sshd", "-D", "-e", "-f", "/run/sshd/config"],
                env={"PATH": PATH, "LANG": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def _overlay(lower: str, target: Path, *, upper: Path, work: Path) -> None:
    syscalls.mount("overlay", target, "overlay", 0, f"lowerdir={lower},upperdir={upper},workdir={work}")


def _mount_devices(devices: Path, seen: Iterable[str]) -> None:
    """seen: names of empty files that stand for device files"""
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


def _cover_proc(files: Path, root: Path) -> None:
    """Lay a node's files over the /proc of its new root; the kernel allows no overlay there."""
    proc = root / "proc"
    for file in files.rglob("*"):
        place = file.relative_to(files)
        if place.parts[0] not in ("driver", "net") and file.is_file() and (proc / place).exists():
            syscalls.bind(file, proc / place)
    if (proc / "driver").is_dir():
        syscalls.bind(files / "driver", proc / "driver")
    if (files / "net").is_dir():
        _cover_proc_net(files / "net", root)


def _cover_proc_net(extra: Path, root: Path) -> None:
    """/proc/net is a link to each reader's own self/net, where nothing can be added: put another link over it."""
    folder = root / "run/l40s-lab/proc-net"
    shutil.copytree(extra, folder)
    for name in os.listdir("/proc/self/net"):  # noqa: PTH208
        if not (folder / name).exists():
            (folder / name).symlink_to(f"/proc/self/net/{name}")
    link = root / "run/l40s-lab/proc-net-link"
    link.symlink_to("/run/l40s-lab/proc-net")
    syscalls.cover_link(str(link), f"{root}/proc/net")
