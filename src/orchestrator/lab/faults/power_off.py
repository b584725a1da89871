"""A node without power: its cables go dead first, so that not one packet says good-bye."""

from __future__ import annotations

import subprocess
import sys

from orchestrator.lab.faults import words
from orchestrator.lab.faults.registry import Fault, Undo, Words
from orchestrator.lab.life.home import LOG
from orchestrator.lab.node.living import LivingNode
from orchestrator.lab.processes import Identity, wait_until
from orchestrator.model.errors import NodeError

FAULT = Fault(
    name="power-off",
    summary="the node loses power: links first, then all processes at once; `lab heal NODE power-off` powers it on"
    " again",
    shows="nothing answers, and connections are not closed",
    levels=(1, 2),
    rebuilds=True,
)
_ENDS_S = 10.0
_BOOTS_S = 60.0


def strike(node: LivingNode, asked: Words) -> Undo:
    """Links first: the kernel of a killed machine would send FIN for every socket."""
    words.at_most(asked, 0)
    first = Identity.of(node.pid)
    node.ip_outside(f"link set {node.link(one.name)} down" for one in node.machine.interfaces)
    if first is not None and not first.end(deadline_s=_ENDS_S):
        raise NodeError("its PID 1 does not end", where=node.name, fix="l40s-deploy lab down")
    return {}


def heal(node: LivingNode, _: Undo) -> None:
    """Boot it: the disk is as new, since an emulated node's is in memory."""
    with (node.blueprint.path / LOG).open("ab") as log:
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator.lab.namespaces.restart", node.blueprint.directory, node.name],
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
