"""A rank that hangs: alive, but unresponsive."""

from __future__ import annotations

import signal
from dataclasses import asdict

from l40s_lab.faults import words
from l40s_lab.faults.engine_process import rank
from l40s_lab.faults.registry import Fault, Undo, Words
from l40s_lab.node.living import LivingNode
from l40s_lab.processes import Identity

FAULT = Fault(
    name="hang-rank",
    argument="R",
    summary="the process of TP rank R is stopped (SIGSTOP)",
    shows="the process's state, requests that never end, /health_generate",
)


def strike(node: LivingNode, asked: Words) -> Undo:
    """Its peers wait for it forever."""
    words.at_most(asked, 1)
    found = rank(node, asked)
    found.kill(signal.SIGSTOP)
    return {"rank": asdict(found)}


def heal(_: LivingNode, undo: Undo) -> None:
    """Continue it, if it still exists."""
    Identity(**undo["rank"]).kill(signal.SIGCONT)
