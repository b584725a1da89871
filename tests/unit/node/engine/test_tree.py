"""When a rank was last seen alive."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.node.agent import clock
from orchestrator.node.agent.run import run_of
from orchestrator.node.engine.gpus import GpuMemory
from orchestrator.node.engine.tree import ProcessTree

LEAST = {"gang": "g", "run_id": "r", "node": "n", "node_rank": 0, "nnodes": 1, "leader": {"port": 7700}}


@pytest.mark.parametrize(
    "look", [lambda tree: tree.step(10.0, set()), lambda tree: tree.some_die()], ids=["step", "some die"]
)
def test_a_rank_was_seen_alive_when_the_look_began(
    look: Callable[[ProcessTree], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = ProcessTree(run_of(LEAST, str(tmp_path)), os.getpid(), GpuMemory("", ()))
    times = itertools.count(100.0)
    monkeypatch.setattr(clock, "now", lambda: next(times))
    look(tree)
    assert tree.alive_at == 100.0, "an agent that has to wait after its look would call a rank alive that was killed"
