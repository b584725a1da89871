"""A node whose SSH server has died, while the node still runs."""

from __future__ import annotations

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Undo, Words
from l40s_lab.faults.ssh_server import start, stop
from l40s_lab.node.living import LivingNode

FAULT = Fault(
    name="sshd-dead",
    summary="the SSH server is stopped; open connections stay",
    shows="new SSH connections are refused; everything else responds",
    levels=(1, 2),
)


def strike(node: LivingNode, asked: Words) -> Undo:
    """Its children are left alone."""
    words.at_most(asked, 0)
    stop(node)
    return {}


def heal(node: LivingNode, _: Undo) -> None:
    """Start it again, with its former limits."""
    start(node)
