"""An engine with wrong answers: bad memory, a wrong tuned config, a shard of another checkpoint."""

from __future__ import annotations

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Undo, Words
from l40s_lab.node.living import LivingNode

_FILE = "/run/l40s-lab/wrong-token"

FAULT = Fault(
    name="wrong-token",
    summary="one token of every answer differs (stand-in engine; on the leader)",
    shows="golden check",
    levels=(1, 2),
)


def strike(node: LivingNode, asked: Words) -> Undo:
    """The stand-in checks for this file at every request."""
    words.at_most(asked, 0)
    node.write(_FILE, "")
    return {}


def heal(node: LivingNode, _: Undo) -> None:
    """The right text again."""
    node.file(_FILE).unlink(missing_ok=True)
