"""A node whose processes are all stopped, while its kernel still accepts connections."""

from __future__ import annotations

import signal
from dataclasses import asdict

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Undo, Words
from l40s_lab.node.living import LivingNode
from l40s_lab.processes import Identity, state, wait_until, wake_waiters
from orchestrator.model.errors import NodeError

FAULT = Fault(
    name="freeze",
    summary="every process is stopped (SIGSTOP); the kernel still accepts connections; `lab heal` continues them",
    shows="TCP connects, but nothing answers",
    levels=(1, 2),
)
_STOPS_S = 5.0


def strike(node: LivingNode, asked: Words) -> Undo:
    """Repeated until no running process is left that could have started another."""
    words.at_most(asked, 0)
    stopped: dict[int, Identity] = {}

    def all_stand_still() -> bool:
        running = [one for one in node.processes() if not _stands(one)]
        for one in running:
            one.kill(signal.SIGSTOP)
            stopped[one.pid] = one
        return not running

    if not wait_until(all_stand_still, deadline_s=_STOPS_S):
        heal(node, {"stopped": [asdict(one) for one in stopped.values()]})
        raise NodeError("its processes could not be stopped", where=node.name, fix="try again")
    return {"stopped": [asdict(one) for one in stopped.values()]}


def heal(node: LivingNode, undo: Undo) -> None:
    """Continue the processes that we stopped, and the shells into the node that stopped with them."""
    for one in undo["stopped"]:
        Identity(**one).kill(signal.SIGCONT)
    if node.has_namespaces:
        wake_waiters(node.pid)


def _stands(one: Identity) -> bool:
    try:
        return state(one.pid) in (b"T", b"Z")
    except OSError:
        return True
