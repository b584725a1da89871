"""When a rank was last seen alive, and compilers below the engine, seen in /proc."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.gang import linked_run
from tests.support.waiting import until

from orchestrator.node import supervision
from orchestrator.node.agent import clock
from orchestrator.node.engine import tree as tree_module
from orchestrator.node.engine.gpus import GpuMemory
from orchestrator.node.engine.tree import LOOK_EVERY_S, ProcessTree


@pytest.mark.parametrize(
    "look", [lambda tree: tree.step(10.0, set()), lambda tree: tree.some_die()], ids=["step", "some die"]
)
@pytest.mark.parametrize(
    ("flags", "at"), [(0, 100.0), (supervision.PF_EXITING, 0.0)], ids=["whole", "ending, its connections closed"]
)
def test_a_rank_was_seen_alive_when_the_look_began(
    look: Callable[[ProcessTree], object], flags: int, at: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = ProcessTree(linked_run("a", str(tmp_path), tp_ranks=(0,)), os.getpid(), GpuMemory(()))
    times = itertools.count(100.0)
    monkeypatch.setattr(clock, "now", lambda: next(times))
    monkeypatch.setattr(tree_module, "_main_thread", lambda _: (b"R", flags))
    look(tree)
    assert tree.ranks[0].alive_at == at, "an agent that has to wait would call a rank alive that others died of"


def test_a_compiler_below_the_engine_is_seen_until_it_ends(tmp_path: Path) -> None:
    tree = ProcessTree(linked_run("a", str(tmp_path)), os.getpid(), GpuMemory(()))
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
