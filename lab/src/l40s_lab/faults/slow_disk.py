"""A node whose disk is slow."""

from __future__ import annotations

from l40s_lab.faults import preloaded, words
from l40s_lab.faults.registry import Fault, Undo, Words
from l40s_lab.node.living import LivingNode

FAULT = Fault(
    name="slow-disk",
    argument="[MIB]",
    summary="programs that start from now on read and write files at MIB (default: 20) MiB per second",
    shows="file reads and writes; the stand-in loads no weights, so its phases do not change",
    levels=(1, 2),
)


def strike(node: LivingNode, asked: Words) -> Undo:
    """There is no device to slow down, since a node's disk is memory: programs are delayed."""
    words.at_most(asked, 1)
    rate = words.number(asked, 0, what="MiB a second", lowest=1, highest=100_000, default=20)
    preloaded.load(node, "disk", "disk-rate", f"{rate << 20}\n")
    return {}


def heal(node: LivingNode, _: Undo) -> None:
    """New programs are as fast as before."""
    preloaded.unload(node, "disk", "disk-rate")
