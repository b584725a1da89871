"""How long a start still takes, by a node's own pace and the last start of the same plan; the downtime of a restart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.reference_plan import plan_of

from orchestrator.gang.steps.start_time import ReadProgress, StartClock, downtime_words, left_s, left_words, reading
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


def test_bytes_and_rate_of_a_node_that_reads_weights() -> None:
    assert reading(node("weights", 41, 163, 20.0), 163_000) == ReadProgress(41_000, 163_000, 2050.0)
    assert reading(node("weights", 1, 163, 20.0), 163_000) == ReadProgress(1000, 163_000, 0.0)  # one shard tells little
    assert reading(node("weights", 41, 163, 20.0), 0) is None
    assert reading(node("graphs", 1, 4, 20.0), 163_000) is None


@pytest.mark.parametrize(
    ("at", "last", "left"),
    [
        (node("weights", 50, 100, 100.0), {}, 100.0),  # its pace alone
        (node("weights", 50, 100, 100.0), LAST, 100.0 + 70.0),  # and what came after the weights last time
        (node("rendezvous", phase_s=4.0), LAST, 390.0 - 4.0),
        (node("kv-cache", phase_s=500.0), LAST, 0.0),  # later than last time: nothing below zero
        (node("rendezvous"), {}, None),
        (node("warm-up"), LAST, None),  # the last start had none
        (node(""), LAST, None),
    ],
)
def test_time_left(at: NodeView, last: dict[str, float], left: float | None) -> None:
    assert left_s(at, reading(at, 1000), last) == left


def test_words() -> None:
    assert left_words(None, None) == ""
    words = left_words(ReadProgress(161_000_000_000, 640_000_000_000, 2.1e9), 290.0)
    assert words == "161.0 of 640.0 GB, 2.10 GB/s, about 5 min left"
    assert left_words(None, 0.0) == "", "it is ready, or takes longer than the last time"
    assert left_words(None, 42.0) == "about 42 s left"


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
