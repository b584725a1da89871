"""When a rank was last seen alive."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.node import supervision
from orchestrator.node.agent import clock
from orchestrator.node.agent.run import run_of
from orchestrator.node.engine import tree as tree_module
from orchestrator.node.engine.gpus import GpuMemory
from orchestrator.node.engine.tree import ProcessTree

LEAST = {"gang": "g", "run_id": "r", "node": "n", "node_rank": 0, "nnodes": 1, "leader": {"port": 7700}}
STAGED = {**LEAST, "tp_ranks": [0]}


@pytest.mark.parametrize(
    "look", [lambda tree: tree.step(10.0, set()), lambda tree: tree.some_die()], ids=["step", "some die"]
)
@pytest.mark.parametrize(
    ("flags", "at"), [(0, 100.0), (supervision.PF_EXITING, 0.0)], ids=["whole", "ending, its connections closed"]
)
def test_a_rank_was_seen_alive_when_the_look_began(
    look: Callable[[ProcessTree], object], flags: int, at: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = ProcessTree(run_of(STAGED, str(tmp_path)), os.getpid(), GpuMemory("", ()))
    times = itertools.count(100.0)
    monkeypatch.setattr(clock, "now", lambda: next(times))
    monkeypatch.setattr(tree_module, "_main_thread", lambda _: (b"R", flags))
    look(tree)
    assert tree.ranks[0].alive_at == at, "an agent that has to wait would call a rank alive that others died of"
