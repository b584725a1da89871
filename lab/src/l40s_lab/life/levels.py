"""The kinds of lab that this machine can run."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from l40s_lab.hardware.machine import System
from l40s_lab.node import rootfs
from orchestrator.protocol.errors import InputError, NodeError

MOST_SYSTEMD_NODES = 16
"""With more nodes, the default is level 1: booting systemd takes some 0.2 s of processor time per node."""
_TRY = """
import os
from l40s_lab import syscalls as s
s.unshare(s.CLONE_NEWNET | s.CLONE_NEWNS | s.CLONE_NEWUTS | s.CLONE_NEWIPC | s.CLONE_NEWPID)
s.make_mounts_private()
s.mount("tmpfs", "/tmp", "tmpfs")
for name in ("upper", "work", "root", "sys", "layer", "cgroup"):
    os.mkdir(f"/tmp/{name}")
s.mount("overlay", "/tmp/root", "overlay", 0, "lowerdir=/,upperdir=/tmp/upper,workdir=/tmp/work")
s.mount("sysfs", "/tmp/sys", "sysfs")
os.setxattr("/tmp/layer", "trusted.overlay.opaque", b"y")
s.mount("overlay", "/tmp/sys", "overlay", s.MS_RDONLY, "lowerdir=/tmp/layer:/tmp/sys,metacopy=on,redirect_dir=on")
print("nodes", flush=True)
s.mount("cgroup2", "/tmp/cgroup", "cgroup2")
if not os.access("/tmp/cgroup", os.W_OK):
    raise OSError("the control group tree is read-only")
s.unshare(s.CLONE_NEWCGROUP)
print(open("/tmp/cgroup/cgroup.subtree_control").read())
"""
_PACKAGES = {
    "/usr/sbin/sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
    "gcc": "gcc libc6-dev",
    "/usr/bin/python3": "python3",
}


def limits_are_short() -> bool:
    """Whether this machine prevents us from giving its nodes a real node's limits (unlimited memlock)."""
    return attainable(resource.RLIMIT_MEMLOCK, resource.RLIM_INFINITY) != resource.RLIM_INFINITY


def attainable(kind: int, wanted: int) -> int:
    """The hard limit that a process of ours can get when it asks for this one (resource.RLIM_INFINITY: unlimited)."""
    soft, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY or 0 <= wanted <= hard:
        return wanted
    try:
        resource.setrlimit(kind, (soft, wanted))
    except (ValueError, OSError):
        return hard
    resource.setrlimit(kind, (soft, hard))
    return wanted


def session_limits(system: System) -> dict[int, int]:
    """Hard limits of a node's sessions by resource, as far as this machine allows them."""
    memlock = resource.RLIM_INFINITY if system.memlock == "unlimited" else system.memlock
    wanted = {resource.RLIMIT_MEMLOCK: memlock, resource.RLIMIT_NOFILE: system.nofile}
    return {kind: attainable(kind, value) for kind, value in wanted.items()}


@dataclass(frozen=True, slots=True)
class Level:
    """A level with the reason for it, and its limitations, each as a sentence ('' for none)."""

    number: Literal[0, 1, 2]
    reason: str
    cannot: str = ""


@dataclass(frozen=True, slots=True)
class _Machine:
    """What this machine can't do, each as text ('' if it can)."""

    nodes: str
    systemd: str
    controllers: tuple[str, ...] = ()
    """What control groups below the root can limit."""


def choose(asked: int | None, nodes: int) -> Level:
    """The requested level, else the highest that is available now. Raises InputError, NodeError.

    Systemd nodes need a root file system: without a request, they are chosen only if it has already been made.
    """
    machine = _look_here()
    if asked in (1, 2) and machine.nodes:
        raise InputError(
            f"level {asked} is not possible here: {machine.nodes}", where="--level", fix="use --level 0, or run as root"
        )
    level = _choose(asked, nodes, machine)
    if limits_are_short():
        level = replace(level, cannot="; ".join(filter(None, (level.cannot, _SHORT_LIMITS))))
    _require_tools(level.number)
    return level


def _choose(asked: int | None, nodes: int, machine: _Machine) -> Level:
    if asked == 0 or machine.nodes:
        return Level(0, machine.nodes or "it was requested", _LEVEL_0_CANNOT)
    if asked == 1:
        return Level(1, "it was requested", _LEVEL_1_CANNOT)
    made = rootfs.cached()
    trouble = machine.systemd or ("" if made else rootfs.obstacle())
    if asked == 2:
        return without_systemd(trouble) if trouble else Level(2, "it was requested", _limits(machine))
    if made and not trouble and nodes <= MOST_SYSTEMD_NODES:
        return Level(2, "root, and the nodes' root file system is ready", _limits(machine))
    return Level(1, f"root, and namespaces work{_hint(made is not None, trouble)}", _LEVEL_1_CANNOT)


def _hint(made: bool, trouble: str) -> str:
    if trouble:
        return ""
    once = f" also in more than {MOST_SYSTEMD_NODES} nodes" if made else ", and builds a root file system for it once"
    return f"; --level 2 boots systemd{once}"


def _limits(machine: _Machine) -> str:
    return "" if {"cpu", "memory"} <= {*machine.controllers} else _NO_CONTROLLERS


def without_systemd(trouble: str) -> Level:
    """Level 1, because level 2 was asked for but is not available."""
    return Level(1, f"level 2 is not possible here: {trouble}", _LEVEL_1_CANNOT)


_LEVEL_0_CANNOT = (
    "nodes share this machine's processes, files and network: no link faults, no node power loss; hardware is read"
    " below l40s_fs_root"
)
_LEVEL_1_CANNOT = "no systemd in the nodes"
_NO_CONTROLLERS = "units have no memory or CPU limits: this machine's cgroup v2 hierarchy has no controllers"
_SHORT_LIMITS = "this machine's own limit on locked memory also applies in the nodes"


def _look_here() -> _Machine:
    if os.geteuid() != 0:
        return _Machine("not root", "not root")
    done = subprocess.run([sys.executable, "-c", _TRY], capture_output=True, text=True, timeout=30, check=False)
    if done.returncode == 0:
        return _Machine("", "", controllers=tuple(done.stdout.split()[1:]))
    said = (done.stderr.strip().splitlines() or ["failed"])[-1]
    return _Machine("", f"control groups: {said}") if done.stdout else _Machine(f"namespaces: {said}", said)


def _require_tools(level: int) -> None:
    missing = [
        package
        for tool, package in _PACKAGES.items()
        if not (level == 0 and tool == "ip") and not (Path(tool).exists() or shutil.which(tool))
    ]
    if missing:
        raise NodeError(
            f"missing: {', '.join(missing)} (Debian names)",
            where="this machine",
            fix=f"apt-get install {' '.join(missing)}",
        )
