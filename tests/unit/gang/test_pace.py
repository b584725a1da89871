"""Which node is behind, what the engine's own limit leaves, and when waiting longer is pointless: as tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.gang.pace import late, progress, took
from orchestrator.planning.phase_limits import allowed_s
from orchestrator.protocol.report import AgentState, Phase, Report

NOW = 50_000.0
ARTICLES_BYTES = 689_000_000_000
ALLOWED = allowed_s(ARTICLES_BYTES)


def node(
    rank: int, phase: str, step: int = 0, of: int = 0, *, for_s: float = 1.0, moved_s: float | None = None
) -> Report:
    """A node that has been in a phase for so long; its counter moved so many seconds ago."""
    moved = NOW - moved_s if moved_s is not None else 0.0
    return Report(
        run_id="r", gang="g", node=f"node{rank}", node_rank=rank, state=AgentState.STARTING, now=NOW,
        phase=Phase(name=phase, step=step, of=of, since=NOW - for_s, moved=moved), allowed_s=ALLOWED, barrier_s=480.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([], ""),
        ([node(0, "weights", 3, 163)], ""),
        ([node(0, "graphs"), node(1, "graphs")], ""),
        ([node(0, "graphs"), node(1, "unheard-of")], ""),
        ([node(0, "graphs"), node(1, "rendezvous"), node(2, "graphs")], "node1 is at rendezvous, the others are done"),
        (
            [node(0, "weights", 163, 163), node(1, "weights", 150, 163), node(2, "weights", 41, 163)],
            "node2 is at shard 41 of 163, the others are at 150 or further",
        ),
        ([node(0, "nccl"), node(1, "rendezvous"), node(2, "rendezvous")],
         "node1, node2 are at rendezvous, the others are done"),
        ([node(9, "nccl"), *(node(rank, "rendezvous") for rank in range(4))],
         "node0 and 3 more are at rendezvous, the others are done"),
    ],
    ids=["nobody", "one node", "all equal", "unknown", "one behind", "by its count", "two behind", "many behind"],
)  # fmt: skip
def test_the_straggler(nodes: list[Report], words: str) -> None:
    assert progress(nodes) == words


def test_a_node_that_does_not_tell_how_far_it_is_is_not_behind_one_that_tells() -> None:
    """Only rank 0 prints a bar, and the three others of the slice on GPUs were called behind through the whole load."""
    silent = [node(rank, "weights", for_s=900_000) for rank in (1, 2, 3)]
    loading = [node(0, "weights", 20, 62, moved_s=1), *silent]
    assert progress(loading) == "" and late(loading) is None
    assert progress([node(0, "weights", 0, 62), *silent]) == ""
    assert (
        progress([*loading, node(4, "weights", 41, 62)])
        == "node0 is at shard 20 of 62, the others are at 41 or further"
    )
    further = [node(0, "weights", 20, 62), node(1, "weights"), node(2, "kv-cache")]
    assert progress(further).startswith("node0, node1 are at weights, the others are done")
    stuck = late([node(0, "kv-cache"), *silent])
    assert stuck is not None and stuck.node == "node1"


def test_the_engines_barrier_is_told_with_what_is_left_of_it() -> None:
    done, behind = node(0, "kv-cache", for_s=168), node(2, "weights", 41, 163, for_s=300, moved_s=2)
    assert progress([done, done, behind]) == (
        "node2 is at shard 41 of 163, the others are done; the engine gives up 480 s after its first rank has loaded; "
        "312 s are left, but 893 s are needed at this pace: read the weights into the page cache before the start"
    )
    fast = node(2, "weights", 160, 163, for_s=300, moved_s=2)
    assert progress([done, fast]).endswith("312 s are left")
    unknown = node(2, "weights", for_s=300)
    assert progress([done, unknown]).endswith("312 s are left")
    assert progress([node(0, "kv-cache", for_s=900), unknown]).endswith("; 0 s are left")


def test_where_the_engine_has_no_barrier_nothing_is_said_of_it() -> None:
    nodes = [replace(one, barrier_s=0.0) for one in (node(0, "kv-cache"), node(1, "weights"))]
    assert progress(nodes) == "node1 is at weights, the others are done"


LATE: list[tuple[str, list[Report], str]] = [
    ("nobody", [], ""),
    ("just begun", [node(0, "weights"), node(1, "weights")], ""),
    ("640 GB from a cold disk", [node(0, "weights", 60, 163, for_s=3000, moved_s=20)], ""),
    ("a cold disk without a count", [node(0, "weights", for_s=3000)], ""),
    ("an hour over, and it still moves", [node(0, "weights", 160, 163, for_s=7200, moved_s=200)], ""),
    ("an hour over, and it stands still", [node(0, "weights", 160, 163, for_s=7200, moved_s=400)], "node0"),
    ("no count, and too long", [node(0, "weights", for_s=4000)], "node0"),
    ("those who wait for it are not late", [node(0, "kv-cache", for_s=5000), node(1, "weights", for_s=5100)], "node1"),
    ("those who wait for a slow one", [node(0, "kv-cache", for_s=900), node(1, "weights", for_s=1000)], ""),
    ("nobody came to the rendezvous", [node(0, "rendezvous", for_s=901)], "node0"),
    ("capturing with torch.compile", [node(0, "graphs", for_s=1500)], ""),
    ("kernels are still compiled", [node(0, "graphs", for_s=5000, moved_s=3), node(1, "graphs", for_s=1)], ""),
    ("they were compiled, and it hangs", [node(0, "graphs", for_s=5000, moved_s=400)], "node0"),
    ("capturing for ever", [node(0, "graphs", for_s=1801), node(1, "graphs", for_s=1)], "node0"),
]


@pytest.mark.parametrize(("nodes", "who"), [row[1:] for row in LATE], ids=[row[0] for row in LATE])
def test_late(nodes: list[Report], who: str) -> None:
    cause = late(nodes)
    assert (cause.node if cause else "") == who


def test_the_words_for_it() -> None:
    cause = late([node(0, "weights", 160, 163, for_s=7200, moved_s=400)])
    assert cause is not None
    assert cause.text == "at shard 160 of 163 for 7200 s; 3745 s are enough for this model, even on slow hardware"
    assert "logs --node node0" in cause.fix


def test_an_agent_that_knows_no_limits_is_never_late() -> None:
    assert late([replace(node(0, "weights", for_s=1e6), allowed_s={})]) is None


def test_a_small_model_has_little_time_for_its_weights_and_all_for_the_rest() -> None:
    small, large = allowed_s(2_000_000), allowed_s(ARTICLES_BYTES)
    assert small["weights"] == pytest.approx(300, abs=1) and large["weights"] > 3600
    assert {name: value for name, value in small.items() if name != "weights"} == {
        name: value for name, value in large.items() if name != "weights"
    }


def test_the_phase_that_took_the_most_time_is_that_of_the_slowest_nodes() -> None:
    faster = {"rendezvous": 8.0, "nccl": 20.0, "weights": 25.0, "kv-cache": 100.0, "ready": 250.0}
    slower = {"rendezvous": 10.0, "weights": 30.0, "kv-cache": 242.0, "warm-up": 250.0, "ready": 260.0}
    start = took([faster, slower])
    assert start is not None
    assert start.words == "weights 212 s of 260 s"
    assert start.as_json() == {
        "seconds": 260.0,
        "longest": "weights",
        "phases": {"rendezvous": 10.0, "nccl": 10.0, "weights": 212.0, "kv-cache": 8.0, "warm-up": 10.0},
    }


@pytest.mark.parametrize("began", [[], [{}], [{"weights": 3.0, "graphs": 9.0}], [{"ready": 9.0}]])
def test_a_start_that_never_was_ready_or_was_not_noted_has_no_longest_phase(began: list[dict[str, float]]) -> None:
    assert took(began) is None
