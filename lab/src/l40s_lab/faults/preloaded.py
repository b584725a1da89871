"""Shared by the faults that work through a library preloaded into every program."""

from __future__ import annotations

from l40s_lab import preload
from l40s_lab.node.living import LivingNode

_LIST = "/etc/ld.so.preload"
_FOLDER = "/run/l40s-lab"


def load(node: LivingNode, library: str, setting: str, value: str) -> None:
    """Make every program that starts from now on load a library of the preload package.

    setting, value: name and content of the file that the library reads
    """
    node.write(f"{_FOLDER}/{setting}", value)
    place = node.file(f"{_FOLDER}/lib{library}.so")
    place.write_bytes(preload.build(library).read_bytes())
    place.chmod(0o755)
    node.write(_LIST, _others(node, library) + f"{_FOLDER}/lib{library}.so\n")


def unload(node: LivingNode, library: str, setting: str) -> None:
    """Programs that start from now on no longer load it; its files are deleted once the list no longer names it."""
    left = _others(node, library)
    if left:
        node.write(_LIST, left)
    else:
        node.file(_LIST).unlink(missing_ok=True)
    for name in (setting, f"lib{library}.so"):
        node.file(f"{_FOLDER}/{name}").unlink(missing_ok=True)


def _others(node: LivingNode, library: str) -> str:
    try:
        lines = node.file(_LIST).read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return ""
    return "".join(line for line in lines if not line.rstrip().endswith(f"/lib{library}.so"))
