"""What is remarked of a serving node beside its engine's own words."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.node.agent.agent import Agent
from orchestrator.node.engine import neighbours
from orchestrator.node.engine.gpus import GpuMemory, GpuUse
from orchestrator.node.engine.neighbours import processors, strangers, unbound
from orchestrator.node.engine.tree import Rank
from orchestrator.protocol.report import AgentState, RankState

GIB = 1 << 30
OURS = frozenset({11, 12})


def use(*held: tuple[int, int], used: int = 0) -> GpuUse:
    processes = tuple((pid, size * GIB) for pid, size in held)
    return GpuUse(0, used * GIB or sum(size for _, size in processes), processes)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (use((11, 30)), []),
        (use((11, 30), (12, 2)), []),
        (
            use((11, 30), (999999, 34)),
            ["GPU 0: process 999999 (not in our PID namespace) holds 34.0 GiB beside the engine"],
        ),
        (use((11, 30), used=40), ["GPU 0: 10.0 GiB are held beside the engine by what NVML does not show"]),
        (use((11, 30), used=31), []),  # contexts that are being made
        (use((77, 30)), []),  # NVML counts in another PID namespace: nothing is known
        (use(used=30), []),
    ],
)
def test_memory_that_others_hold_beside_the_engine(seen: GpuUse, words: list[str]) -> None:
    assert list(strangers([seen], OURS)) == words


def test_of_a_stranger_only_the_program_is_named_since_arguments_may_be_secret() -> None:
    (words,) = strangers([use((11, 1), (os.getpid(), 34))], OURS)
    assert "pytest" not in words and f"process {os.getpid()} (" in words and "python" in words


def machine(root: Path, allowed: str, *, beside: str | None = "32-63") -> str:
    place = root / "sys/bus/pci/devices/0000:c1:00.0"
    place.mkdir(parents=True)
    if beside is not None:
        (place / "local_cpulist").write_text(f"{beside}\n")
    (root / "proc/11").mkdir(parents=True)
    (root / "proc/11/status").write_text(
        f"Name:\tsglang\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}\nMems_allowed:\t1\n"
    )
    return str(root)


@pytest.mark.parametrize(
    ("allowed", "beside", "away"),
    [
        ("0-63", "32-63", "on 0-63, GPU 1 is at 32-63"),
        ("0-31", "32-63", "on 0-31, GPU 1 is at 32-63"),
        ("32-63", "32-63", ""),
        ("40,42-43", "32-63,96-127", ""),
        ("0-63", "0-63", ""),  # one NUMA node
        ("0-63", None, ""),  # not read: unknown
        ("0-63", "", ""),
    ],
)
def test_a_rank_that_may_run_away_from_its_gpu(tmp_path: Path, allowed: str, beside: str | None, away: str) -> None:
    root = machine(tmp_path, allowed, beside=beside)
    rank = Rank(tp_rank=3, gpu=1, pid=11, state=RankState.ALIVE)
    found = list(unbound([rank], {1: "00000000:C1:00.0"}, root))
    assert [f"({away}) [NUMA-NOT-BOUND]" in words for words in found] == [True] * bool(away)
    assert not list(unbound([rank], {}, root)) and not list(unbound([rank], {1: "../.."}, root))
    assert not list(unbound([Rank(tp_rank=3, gpu=1, pid=11)], {1: "00000000:C1:00.0"}, root)), "it does not live"


def test_the_ranks_of_equal_nodes_are_one_sentence_for_all_of_them(tmp_path: Path) -> None:
    root = machine(tmp_path, "0-63")
    places = dict.fromkeys((3, 4, 5), "0000:c1:00.0")
    nodes = [
        [Rank(tp_rank=first + gpu, gpu=gpu, pid=11, state=RankState.ALIVE) for gpu in (5, 4, 3)] for first in (0, 8, 16)
    ]
    sentences = {words for ranks in nodes for words in unbound(ranks, places, root)}
    assert [words.partition(" may run")[0] for words in sentences] == ["the ranks of GPUs 3, 4, 5"]


def test_lists_of_processors_are_the_kernels() -> None:
    assert processors("0-2,8") == {0, 1, 2, 8}
    assert processors("") == processors("all") == frozenset()
    assert len(processors("0-99999999999")) <= 8193


def test_an_agent_looks_while_it_serves_and_not_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = GpuMemory([0])
    memory.answer = {0: use((11, 30), (999999, 34))}
    tree = SimpleNamespace(ever=set(OURS), ranks=[])
    agent: Any = SimpleNamespace(memory=memory, tree=tree, state=AgentState.STARTING, _looked_beside=-1e9, _beside=())
    Agent._note_neighbours(agent, 100.0)
    assert agent._beside == ()
    agent.state = AgentState.READY
    Agent._note_neighbours(agent, 101.0)
    assert len(agent._beside) == 1 and "34.0 GiB" in agent._beside[0]
    monkeypatch.setattr(neighbours, "strangers", lambda *_: ["later"])
    Agent._note_neighbours(agent, 105.0)
    assert "34.0 GiB" in agent._beside[0]
    Agent._note_neighbours(agent, 112.0)
    assert agent._beside == ("later",)
