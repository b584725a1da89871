"""Which kinds of lab this machine can have."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from orchestrator.model.errors import InputError, NodeError

_TRY = """
import os
from orchestrator.lab import syscalls as s
s.unshare(s.CLONE_NEWNET | s.CLONE_NEWNS | s.CLONE_NEWUTS | s.CLONE_NEWIPC | s.CLONE_NEWPID)
s.make_mounts_private()
s.mount("tmpfs", "/tmp", "tmpfs")
for name in ("upper", "work", "root", "sys", "layer"):
    os.mkdir(f"/tmp/{name}")
s.mount("overlay", "/tmp/root", "overlay", 0, "lowerdir=/,upperdir=/tmp/upper,workdir=/tmp/work")
s.mount("sysfs", "/tmp/sys", "sysfs")
os.setxattr("/tmp/layer", "trusted.overlay.opaque", b"y")
s.mount("overlay", "/tmp/sys", "overlay", s.MS_RDONLY, "lowerdir=/tmp/layer:/tmp/sys,metacopy=on,redirect_dir=on")
"""
_PACKAGES = {
    "/usr/sbin/sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
    "gcc": "gcc libc6-dev",
    "/usr/bin/python3": "python3",
}


def limits_are_short() -> bool:
    """This machine does not let us give its nodes the limits that a real one has (memlock without bound)."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if hard == resource.RLIM_INFINITY:
        return False
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, resource.RLIM_INFINITY))
    except (ValueError, OSError):
        return True
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    return False


@dataclass(frozen=True, slots=True)
class Level:
    """A level with the reason for it, and what it cannot do, each in a sentence ('' for nothing)."""

    number: Literal[0, 1]
    reason: str
    cannot: str = ""


def choose(asked: int | None) -> Level:
    """The highest level that works here, or the one that was asked for. Raises InputError, NodeError."""
    obstacle = _obstacle()
    if asked == 1 and obstacle:
        raise InputError(f"level 1 is not possible here: {obstacle}", where="--level", fix="--level 0, or run as root")
    if asked == 0 or obstacle:
        level = Level(0, obstacle or "it was asked for", _LEVEL_0_CANNOT)
    else:
        level = Level(1, "it was asked for" if asked == 1 else "root, and namespaces work", _LEVEL_1_CANNOT)
    if limits_are_short():
        level = replace(
            level, cannot=f"{level.cannot}; this machine's own limit on locked memory holds in the nodes too"
        )
    _require_tools(level.number)
    return level


_LEVEL_0_CANNOT = (
    "nodes share this machine's processes, files and network: no link faults, no node that dies as a whole;"
    " hardware is read below l40s_fs_root"
)
_LEVEL_1_CANNOT = "no systemd in the nodes"


def _obstacle() -> str:
    if os.geteuid() != 0:
        return "not root"
    done = subprocess.run([sys.executable, "-c", _TRY], capture_output=True, text=True, timeout=30, check=False)
    return "" if done.returncode == 0 else f"namespaces: {(done.stderr.strip().splitlines() or ['failed'])[-1]}"


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
