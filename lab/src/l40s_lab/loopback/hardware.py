"""The hardware that a level-0 node shows: plain files below its own root, changed one by one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from l40s_lab.hardware import procfs, sysfs
from l40s_lab.hardware.machine import NodeMachine
from l40s_lab.node.tree import FileTree

_READABLE_CONFIG = 4096 if os.geteuid() == 0 else 64
"""Bytes of a PCI function's configuration space that Linux shows: all to root, the header to others."""


def trees(node: NodeMachine) -> dict[str, FileTree]:
    """Directory below the node's root -> its contents."""
    kernel = procfs.render(node)
    kernel.put("/meminfo", procfs.meminfo(node).encode())
    return {"sys": sysfs.render(node, live_network=False, config_bytes=_READABLE_CONFIG), "proc": kernel}


def change(root: Path, before: NodeMachine, after: NodeMachine) -> None:
    """Turn one machine's files into another's; files that are the same stay untouched."""
    new = trees(after)
    for name, old in trees(before).items():
        _change(root / name, old, new[name])


def _change(top: Path, before: FileTree, after: FileTree) -> None:
    for path, content in after.files.items():
        if before.files.get(path) != content:
            fresh = _beside(top, path)
            fresh.write_bytes(content)
            fresh.replace(top / path.lstrip("/"))
    for path, target in after.links.items():
        if before.links.get(path) != target:
            fresh = _beside(top, path)
            fresh.symlink_to(target)
            fresh.replace(top / path.lstrip("/"))
    for path in (before.files.keys() | before.links.keys()) - after.files.keys() - after.links.keys():
        place = top / path.lstrip("/")
        place.unlink()
        with suppress(OSError):  # one of them is not empty
            for folder in place.parents:
                folder.rmdir()


def _beside(top: Path, path: str) -> Path:
    place = top / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_name(f".{place.name}.new")
    fresh.unlink(missing_ok=True)
    return fresh
