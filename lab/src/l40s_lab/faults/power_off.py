"""A node without power: its cables go dead first, so that it sends no last packet."""

from __future__ import annotations

import subprocess
import sys

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Undo, Words
from l40s_lab.life.home import LOG
from l40s_lab.namespaces.restart import NEW_DISK
from l40s_lab.node.living import LivingNode
from l40s_lab.processes import Identity, wait_until
from orchestrator.model.errors import InputError, NodeError

FAULT = Fault(
    name="power-off",
    argument="[new-disk]",
    summary="the node loses power: links first, then all processes at once; `lab heal NODE power-off` powers it on"
    " again, with what was on its disk or, after `new-disk`, with an empty one",
    shows="nothing answers, and connections are not closed",
    levels=(1, 2),
    rebuilds=True,
)
_ENDS_S = 10.0
_BOOTS_S = 60.0


def strike(node: LivingNode, asked: Words) -> Undo:
    """Links first: the kernel of a killed machine would send FIN for every socket."""
    words.at_most(asked, 1)
    if asked and asked[0] != NEW_DISK:
        raise InputError(f"found {asked[0]!r}, wanted {NEW_DISK} or nothing", where="ARG", fix="l40s-deploy lab faults")
    first = Identity.of(node.pid)
    node.ip_outside(f"link set {node.link(one.name)} down" for one in node.machine.interfaces)
    if first is not None and not first.end(deadline_s=_ENDS_S):
        raise NodeError("its PID 1 does not end", where=node.name, fix="l40s-deploy lab down")
    return {"new_disk": bool(asked)}


def heal(node: LivingNode, undo: Undo) -> None:
    """Boot it."""
    disk = [NEW_DISK] if undo["new_disk"] else []
    with (node.blueprint.path / LOG).open("ab") as log:
        done = subprocess.run(
            [sys.executable, "-m", "l40s_lab.namespaces.restart", node.blueprint.directory, node.name, *disk],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=_BOOTS_S,
            check=False,
        )
    if done.returncode or not wait_until(lambda: node.find_pid() is not None, deadline_s=_ENDS_S):
        raise NodeError(
            f"it does not boot: {node.place.log_tail()}",
            where=node.name,
            fix="run `l40s-deploy lab down`, then `l40s-deploy lab up`",
        )
