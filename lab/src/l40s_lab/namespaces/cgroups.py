"""A lab's part of the control group tree, which the nodes' systemds divide further.

The kernel keeps control groups after the processes in them have ended, so `lab down` removes them. The tree is mounted
privately: it need not be visible on this machine. On a machine that still uses the controllers of cgroup v1
(/sys/fs/cgroup with many mounts), the v2 tree exists beside them.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from l40s_lab import syscalls
from l40s_lab.namespaces.mounts import in_child
from l40s_lab.processes import wait_until

_QUIET = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC


def create(mark: str, mountpoint: Path) -> Path:
    """The lab's group, in a tree mounted at `mountpoint` in the caller's mount namespace."""
    mountpoint.mkdir()
    syscalls.mount("cgroup2", mountpoint, "cgroup2", _QUIET)
    group = of_lab(mark, mountpoint)
    group.mkdir()
    for name in (group / "cgroup.controllers").read_text().split():
        (group / "cgroup.subtree_control").write_text(f"+{name}")
    return group


def of_lab(mark: str, mountpoint: Path) -> Path:
    """The lab's group below such a mount point."""
    return mountpoint / f"l40s-lab-{mark}"


def v1_of_cpu() -> Path:
    """Where this machine has the v1 tree of the controller of processor time. Raises FileNotFoundError without one."""
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    found = [Path(place) for _, place, kind, options, *_ in mounts if kind == "cgroup" and "cpu" in options.split(",")]
    if not found:
        raise FileNotFoundError("no tree of control groups limits processor time")
    return found[0]


def clear(group: Path) -> bool:
    """Remove a group and its children; False if one of them still has a process."""
    try:
        for folder, _, _ in os.walk(group, topdown=False):
            Path(folder).rmdir()
    except OSError as failure:
        if failure.errno not in (errno.EBUSY, errno.ENOENT):
            raise
    return not group.exists()


def enter(group: Path) -> None:
    """Make this process the first of a new group, and that group the root for it and its children."""
    group.mkdir()
    (group / "cgroup.procs").write_text("0")
    syscalls.unshare(syscalls.CLONE_NEWCGROUP)


def show(target: Path) -> None:
    """Mount the tree below the group that the caller has entered."""
    syscalls.mount("cgroup2", target, "cgroup2", _QUIET)


def remove(mark: str, *, deadline_s: float) -> bool:
    """Remove a lab's groups once their processes have ended; False if one is still alive at the deadline."""
    removed = False
    with suppress(OSError):
        removed = in_child(lambda: _remove(mark, deadline_s))
    with suppress(OSError):
        clear(of_lab(mark, v1_of_cpu()))  # of a node that was slow
    return removed


def _remove(mark: str, deadline_s: float) -> bool:
    top = Path("/sys")  # a directory that always exists; only this process sees the tree on it
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.make_mounts_private()
    try:
        syscalls.mount("cgroup2", top, "cgroup2", _QUIET)
    except OSError:
        return True  # a machine without the tree has no groups
    return wait_until(lambda: clear(of_lab(mark, top)), deadline_s=deadline_s)
