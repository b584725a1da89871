"""How long a start still takes, by a node's own pace and the last start of the same plan; the downtime of a restart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.reference_plan import plan_of

from orchestrator.gang.steps.start_time import StartClock, downtime_words, furthest_behind, left_words
from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.protocol.report import Phase
from orchestrator.records import documents

LAST = {"rendezvous": 10.0, "nccl": 20.0, "weights": 30.0, "kv-cache": 330.0, "graphs": 340.0, "ready": 400.0}


def node(phase: str, step: int = 0, of: int = 0, phase_s: float = 0.0, started_s: float = 50.0) -> NodeView:
    return NodeView(
        name="node0",
        node_rank=0,
        state=NodeState("starting"),
        alive=True,
        phase=Phase(name=phase, step=step, of=of),
        started_s=started_s,
        phase_s=phase_s,
    )


@pytest.mark.parametrize(
    ("at", "last", "words"),
    [
        (node("weights", 50, 100, 100.0), {}, "500.0 of 1000.0 GB, 5.00 GB/s, about 2 min left"),  # its pace alone
        (
            node("weights", 50, 100, 100.0),
            LAST,
            "500.0 of 1000.0 GB, 5.00 GB/s, about 3 min left",
        ),  # and what came after
        (node("weights", 1, 100, 20.0), {}, "10.0 of 1000.0 GB"),  # one shard tells little
        (node("rendezvous", phase_s=4.0), LAST, "about 6 min left"),
        (node("graphs", phase_s=18.0), LAST, "about 42 s left"),
        (node("kv-cache", phase_s=500.0), LAST, ""),  # later than last time: nothing below zero
        (node("rendezvous"), {}, ""),
        (node("warm-up"), LAST, ""),  # the last start had none
        (node(""), LAST, ""),
    ],
)
def test_what_is_left_of_a_start(at: NodeView, last: dict[str, float], words: str) -> None:
    assert left_words(at, 10**12, last) == words
    assert at.phase.name != "weights" or left_words(at, 0, {}) == "", "the model's size is unknown"


CALCULATED = {"rendezvous": (20.0, 50.0), "nccl": (1.0, 3.0), "weights": (40.0, 700.0), "graphs": (130.0, 170.0),
              "warm-up": (10.0, 15.0)}  # fmt: skip


@pytest.mark.parametrize(
    ("at", "last", "phases", "words"),
    [
        (node("rendezvous", phase_s=10.0), {}, CALCULATED, "3.2 to 15.5 min left, calculated"),
        (node("graphs", phase_s=100.0), {}, CALCULATED, "40 to 85 s left, calculated"),
        (node("graphs", phase_s=400.0), {}, CALCULATED, "230 s longer than calculated"),
        (
            node("weights", 50, 100, 100.0),
            {},
            CALCULATED,
            "500.0 of 1000.0 GB, 5.00 GB/s, 4.0 to 4.8 min left, calculated",
        ),
        (node("graphs", phase_s=18.0), LAST, CALCULATED, "about 42 s left"),  # what was counts more
        (node("weights", phase_s=9.0), {}, {"weights": (40.0, 60.0)}, ""),  # graphs of an unknown length are to come
        (node("ready"), {}, CALCULATED, ""),
    ],
)
def test_a_first_start_knows_graphs_and_compilation(
    at: NodeView, last: dict[str, float], phases: dict[str, tuple[float, float]], words: str
) -> None:
    assert left_words(at, 10**12, last, phases) == words


def test_a_start_waits_for_the_node_furthest_behind_which_best_tells_how_far_it_is() -> None:
    near, told, untold = node("graphs", 3, 8), node("weights", 9, 10), node("weights")
    assert furthest_behind([near, untold, told]) is told
    assert furthest_behind([replace(near, alive=False), node("")]) is None


def view(state: GangState, *nodes: NodeView, **more: Any) -> GangView:
    return GangView(name="gang0", state=state, run_id="r1", model="m", stack="s", nodes=nodes, **more)


def test_a_start_that_came_to_ready_is_what_the_next_one_goes_by(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    plan = plan_of()
    named: dict[str, Any] = {"model": plan.gangs[0].model, "stack": plan.gangs[0].stack}
    clock = StartClock()
    clock.planned(plan)
    rising = node("weights", 50, 163, phase_s=100.0, started_s=130.0)
    clock.seen([GangView(name="gang0", state=GangState.STARTING, run_id="r1", nodes=(rising,), **named)])
    assert " GB, " in clock.left("gang0", rising)
    done = [replace(node("ready"), began={"weights": at, "ready": 400.0}) for at in (25.0, 30.0)]
    clock.seen([GangView(name="gang0", state=GangState.READY, run_id="r1", nodes=tuple(done), **named)])
    assert documents.last_start("gang0", **named) == {"weights": 30.0, "ready": 400.0}
    clock.planned(plan)
    assert clock.left("gang0", node("weights", phase_s=70.0)) == "about 5 min left"


def test_a_gang_that_was_ready_already_and_a_damaged_record_tell_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    clock = StartClock()
    clock.seen([view(GangState.READY, node("ready"))])
    assert not documents.state_folder("starts").exists()
    documents.keep_start("g", "m", "s", {"ready": 1.0})
    (kept,) = documents.state_folder("starts").iterdir()
    for text in ("", "[]", '{"began": {"ready": "x"}}', '{"began": [1]}'):
        kept.write_text(text)
        assert documents.last_start("g", "m", "s") == {}


@pytest.mark.parametrize(
    ("times", "phase", "healthy", "words"),
    [
        (((500, 290), (500, 300)), "ready", True, "about 4 min (its last start took 210 s)"),
        (((50, 8.0),), "ready", True, "about 40 s (its last start took 42 s)"),
        (((50, 8.0),), "weights", True, "is not known"),
        (((500, 290),), "ready", False, "is not serving now"),
    ],
)
def test_downtime(times: tuple[tuple[float, float], ...], phase: str, healthy: bool, words: str) -> None:
    nodes = [node(phase, phase_s=phase_s, started_s=started_s) for started_s, phase_s in times]
    told = downtime_words(view(GangState.READY, *nodes, service_healthy=healthy), drain_s=50)
    assert words in told and ("50 s" in told) == healthy
