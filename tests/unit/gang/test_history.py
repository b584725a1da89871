"""Runs that the nodes have kept: who started each, and why the last one failed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.gang.history import last_verdict, of_now, past_runs, plan_before
from orchestrator.protocol.errors import Unreachable
from orchestrator.protocol.report import AgentState, Cause, RankReport, RankState, Report


def test_a_run_belongs_to_the_last_holder_of_the_lock_before_it() -> None:
    """Also where the next command comes within the same second."""
    report = Report(
        gang="gang0", node="a", node_rank=0, run_id="1", state=AgentState.STOPPED, started_at=100.0, updated_at=100.2
    )
    lines = [
        {"at": at, "action": action, "who": "ops", "host": "head", "command": command}
        for at, action, command in (
            (90.0, "begins", "down"),
            (99.9, "begins", "up"),
            (100.1, "ends", "up"),
            (100.3, "begins", "rollback"),
        )
    ]
    (run,) = past_runs("gang0", {"a": [report]}, {"a": lines})
    assert (run.command, run.by) == ("up", "ops@head")


OOM = Cause(node="node1", tp_rank=3, text="out of memory", at=90.0, signature="oom")
FOLLOWED = Cause(node="node0", text="ended because node1 failed", at=90.1, secondary=True)


def report(node: str, run: str = "r1", state: str = "failed", **more: object) -> Report:
    base = Report(
        run_id=run,
        gang="gang0",
        node=node,
        node_rank=int(node[-1]),
        state=AgentState(state),
        model="M",
        stack="S",
        alive=False,
        started_at=float(run[-1]) * 50,
        now=100.0,
    )
    return replace(base, **more)  # type: ignore[arg-type]


FAILED = {"node0": [report("node0", cause=FOLLOWED, verdict=OOM)], "node1": [report("node1", cause=OOM)]}


def test_a_failed_run_is_remembered_with_its_cause() -> None:
    (run,) = past_runs("gang0", FAILED, {})
    assert (run.end, run.cause, run.command) == ("failed", OOM, "")


READY = {"rendezvous": 1.0, "ready": 9.0}


@pytest.mark.parametrize(("began", "before"), [({}, "r1"), (READY, "r2")])
def test_no_way_leads_back_to_a_plan_that_never_came_up(began: dict[str, float], before: str) -> None:
    """Plan B failed and A was restored: who goes back from A does not mean B, unless it has served."""
    kept = [report("node1", "r3", "ready", plan_id="A", alive=True, began=READY)]
    kept += [report("node1", "r2", plan_id="B", cause=OOM, began=began), report("node1", plan_id="C", state="stopped")]
    found = plan_before(past_runs("gang0", {"node1": kept}, {}), "A")
    assert found is not None and found.run_id == before


def cleared(run: Report) -> Report:
    return replace(run, state=AgentState.STOPPED)


@pytest.mark.parametrize(
    ("kept", "newest"),
    [
        pytest.param(FAILED, True, id="just failed"),
        pytest.param({node: [cleared(run) for run in runs] for node, runs in FAILED.items()}, True, id="then down"),
        pytest.param(
            {node: [*runs, report(node, "r2", "ready", alive=True)] for node, runs in FAILED.items()},
            False,
            id="then started again",
        ),
        pytest.param(
            {node: [*runs, report(node, "r2", "stopped")] for node, runs in FAILED.items()},
            False,
            id="then started and stopped in good order",
        ),
    ],
)
def test_the_first_cause_with_what_followed(kept: dict[str, list[Report]], newest: bool) -> None:
    found = last_verdict("gang0", kept)
    assert found is not None
    assert (found.run_id, found.cause, found.secondary) == ("r1", OOM, (FOLLOWED,))
    assert (found.newest, found.ago_s, found.model) == (newest, 10.0, "M")


def test_a_run_that_is_asked_for_and_the_gang_of_now() -> None:
    """What it suffers from now is its trouble, and no failure of a run that goes on."""
    hangs = Cause(node="node1", text="the engine may hang", at=99.0, pid=7, gpu=3)
    ranks = (RankReport(tp_rank=11, gpu=3, pid=7, state=RankState.ALIVE),)
    more: dict[str, object] = {"alive": True, "updated_at": 100.0, "service_url": "http://x", "service_state": "slow"}
    now = {
        "node0": report("node0", "r2", "ready", **more, trouble=hangs),
        "node1": report("node1", "r2", "ready", alive=True, updated_at=100.0, ranks=ranks),
    }
    kept = {name: [now[name], *runs] for name, runs in FAILED.items()}
    found = last_verdict("gang0", kept)
    assert found is not None and found.run_id == "r1" and last_verdict("gang0", kept, "r2") is None
    seen = of_now("gang0", kept)
    assert (seen.state.value, seen.trouble, seen.model) == ("degraded", "slow", "M")
    assert seen.cause is not None and (seen.cause.node, seen.cause.tp_rank) == ("node1", 11)


def test_nothing_ever_failed() -> None:
    assert last_verdict("gang0", {"node0": [], "node1": []}) is None
    assert last_verdict("gang0", {"node0": [report("node0", state="stopped")]}) is None


def test_the_others_tell_of_a_node_that_does_not_answer() -> None:
    lost = Unreachable("no answer", where="node1", fix="look")
    found = last_verdict("gang0", {"node0": FAILED["node0"], "node1": lost})
    assert found is not None
    assert (found.cause, found.ago_s) == (OOM, None)


def test_of_two_failures_the_newer_one() -> None:
    again = replace(OOM, text="again", at=95.0)
    found = last_verdict("gang0", {"node1": [report("node1", "r2", cause=again), *FAILED["node1"]]})
    assert found is not None
    assert (found.run_id, found.cause.text) == ("r2", "again")


SILENT = Cause(node="node1", text="the agent on node1 was silent for 30 s", at=90.0)


def test_an_age_is_by_the_clock_that_the_cause_was_written_with() -> None:
    """node1's clock is 600 s ahead of that of the leader, which alone saw it fall silent."""
    leader = report("node0", cause=replace(SILENT, node="node0", secondary=True), verdict=SILENT, now=330.0)
    other = report("node1", cause=Cause(node="node1", text="cut off", at=690.0, secondary=True), now=930.0)
    verdict = last_verdict("gang0", {"node0": [leader], "node1": [other]})
    assert verdict is not None and verdict.cause.node == "node1" and verdict.ago_s == 240.0
    own = last_verdict("gang0", FAILED)
    assert own is not None and own.ago_s == 10.0
