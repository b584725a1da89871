"""The parts of the proof with 32 ranks that need no engine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.gpu.figures import Figures, Result
from tests.gpu.page import page
from tests.tp32 import __main__ as tp32

from l40s_lab.processes import Identity

START = {"seconds": 255.6, "longest": "rendezvous", "phases": {"rendezvous": 189.0, "weights": 3.1, "warm-up": 20.5}}


def test_a_rank_of_every_node_is_killed_and_the_last_in_the_second_gang() -> None:
    for nodes in (2, 4):
        steps = tp32.steps(nodes)
        names = [step.name for step in steps]
        assert sorted(name for name in names if name.startswith("kill")) == [f"kill on node{n}" for n in range(nodes)]
        assert names[0] == "up" and names[-2:] == [f"kill on node{nodes - 1}", "down"]
        assert [step.shape(8).gangs for step in steps if step.shape] == [1] * (len(steps) - 3) + [2] * 3


def test_starts_are_told_by_phase_and_the_row_in_short(tmp_path: Path) -> None:
    figures = Figures(tmp_path / "figures.json", {"gpus": "2 processors, EPYC"})
    kill = {"processes_dead_s": 0.5, "memory_free_s": 1.2, "cause": ["node1", 15, 9, "killed"]}
    figures.add(Result(step="up", outcome="as it should", said="ready", figures={"up_s": 256.2, "start": START}))
    figures.add(Result(step="kill", outcome="as it should", said="named", figures=kill))
    figures.add(Result(step="kill", outcome="otherwise", said="not named"))
    assert "| up: start | 189.0 | 3.1 |  | 20.5 | 255.6 |" in list(tp32.starts(figures))
    assert tp32.in_short(figures) == "ready in 256 s on 2 processors, 1 of 2 killed ranks named"
    assert page(figures, "# A head").startswith("# A head\n") and "1 of 2 kills" in page(figures, "")


@pytest.mark.parametrize(("ranks", "block"), [(32, 64), (4, 512)])
def test_each_rank_has_whole_blocks(ranks: int, block: int) -> None:
    assert list(tp32._kinds(ranks)) == [f"FP8 {block}x{block}", "INT8 channel"]
    assert not 18432 // ranks % block and not 2048 // ranks % block


def test_memory_counts_as_free_without_what_the_processes_held(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, used = tp32.Memory(), [9000]
    monkeypatch.setattr(memory, "used", lambda: list(used))
    monkeypatch.setattr(tp32, "_pss_kib", lambda _: 500 << 10)
    assert memory.held([Identity(1, 1, ""), Identity(2, 2, "")]) == 1000
    assert [memory.free([]) for used[0] in (9000, 8101, 8100)] == [False, False, True]
