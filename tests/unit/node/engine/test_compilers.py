"""Compilers below the engine, seen in /proc."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from pathlib import Path

from tests.support.waiting import until

from orchestrator.node.agent.run import run_of
from orchestrator.node.engine.gpus import GpuMemory
from orchestrator.node.engine.tree import LOOK_EVERY_S, ProcessTree

LEAST = {"gang": "g", "run_id": "r", "node": "n", "node_rank": 0, "nnodes": 1, "leader": {"port": 7700}}


def test_a_compiler_below_the_engine_is_seen_until_it_ends(tmp_path: Path) -> None:
    tree = ProcessTree(run_of(LEAST, str(tmp_path)), os.getpid(), GpuMemory("", ()))
    times = itertools.count(step=int(LOOK_EVERY_S) + 1)

    def seen() -> tuple[str, ...]:
        tree.step(next(times) + 10.0, set())
        return tree.compilers

    assert seen() == ()
    (tmp_path / "ninja").symlink_to(str(shutil.which("sleep")))
    with subprocess.Popen([tmp_path / "ninja", "600"]) as compiler:
        until(lambda: seen() == ("ninja",), 10.0)
        compiler.kill()
    assert seen() == ()
