"""A node whose disk is full."""

from __future__ import annotations

import os

from l40s_lab import syscalls
from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Undo, Words
from l40s_lab.namespaces.mounts import Spaces, in_child
from l40s_lab.namespaces.node import DISK
from l40s_lab.node.living import LivingNode

FAULT = Fault(
    name="disk-full",
    summary="the root file system, /tmp and the home directories are completely full (ENOSPC)",
    shows="df, and every program that writes, including running ones",
    levels=(1, 2),
)
_LEAST_BLOCKS = 1
"""A tmpfs of size 0 has no limit (tmpfs(5))."""
_PLACES = (f"/run/l40s-lab/{DISK}", "/tmp", "/root")  # noqa: S108 - the node's own


def strike(node: LivingNode, asked: Words) -> Undo:
    """Limit the memory behind the disk to what it uses now."""
    words.at_most(asked, 0)
    sizes = _in_node(node, {})
    return {"sizes": sizes}


def heal(node: LivingNode, undo: Undo) -> None:
    """Restore the former size."""
    _in_node(node, {str(place): int(size) for place, size in undo["sizes"].items()})


def _in_node(node: LivingNode, wanted: dict[str, int]) -> dict[str, int]:
    """Set the places to these sizes, or to what they use now; returns their former sizes in bytes."""
    mounts = Spaces(node.pid, ["mnt"])

    def work() -> dict[str, int]:
        mounts.join()
        had = {}
        for place in filter(os.path.ismount, wanted or _PLACES):
            now = os.statvfs(place)
            had[place] = now.f_blocks * now.f_frsize
            size = wanted.get(place) or max(now.f_blocks - now.f_bfree, _LEAST_BLOCKS) * now.f_frsize
            syscalls.mount("none", place, flags=syscalls.MS_REMOUNT, options=f"size={size}")
        return had

    try:
        return in_child(work)
    finally:
        mounts.close()
