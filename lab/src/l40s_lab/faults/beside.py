"""Processes of the lab that keep a fault going: in its namespaces, so that they end with it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from types import ModuleType

from l40s_lab.life.home import LOG
from l40s_lab.namespaces.mounts import Spaces, in_child
from l40s_lab.node.living import LivingNode
from l40s_lab.processes import Identity
from orchestrator.protocol.errors import NodeError

ENDS_S = 10.0


def start(node: LivingNode, module: ModuleType, words: Sequence[str]) -> Identity:
    """Run a module beside the nodes until it says `ready`. Raises NodeError where it ends before."""

    def work() -> Identity | None:
        spaces.join()
        with (node.blueprint.path / LOG).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module.__name__, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        assert process.stdout is not None
        return Identity.of(process.pid) if process.stdout.readline() == b"ready\n" else None

    with Spaces(node.supervisor, ["net", "pid"]) as spaces:
        started = in_child(work)
    if started is None:
        what = f"{module.__name__.rpartition('.')[2]} ended: {node.place.log_tail()}"
        raise NodeError(what, where=node.name, fix="l40s-deploy lab status")
    return started
