"""A gang started by release 0.1.0, with its own node application: seen, explained, restarted, ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import down, restart, why
from tests.support.local_gang import Local, LocalGang, Notes
from tests.support.recorded_release import APPLICATION
from tests.support.waiting import until

from orchestrator.gang.steps.down import DownRequest
from orchestrator.gang.steps.guard.guard import guard
from orchestrator.gang.steps.guard.request import GuardRequest
from orchestrator.gang.steps.restart_sequence import RestartRequest
from orchestrator.gang.steps.staging import staged_plan
from orchestrator.model.gang_state import GangState
from orchestrator.node.verbs import report
from orchestrator.remote.fleet import Fleet

pytestmark = pytest.mark.processes
ENDED = ("stopped", "stopping")


def old(verb: str, request: dict[str, Any]) -> Any:
    """Run a verb of the old application."""
    done = subprocess.run(
        [sys.executable, "-EsS", str(APPLICATION), verb],
        input=json.dumps(request).encode(),
        capture_output=True,
        timeout=60,
        check=True,
    )
    answer = json.loads(done.stdout)
    assert answer["ok"], answer
    return answer["value"]


@pytest.fixture
def started(local: Local) -> Iterator[LocalGang]:
    """Two nodes that the old release has staged, armed and started; ready."""
    gang = local(nodes=2)
    ranks = range(gang.nodes)
    for rank in ranks:
        old("stage", gang.staging(rank))
    arming = [
        subprocess.Popen(
            [sys.executable, "-EsS", str(APPLICATION), "arm"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        for _ in ranks
    ]
    for rank, process in zip(ranks, arming, strict=True):
        assert process.stdin is not None
        process.stdin.write(json.dumps(gang.base(rank)).encode())
        process.stdin.close()
    assert [process.wait(60) for process in arming] == [0, 0]
    until(lambda: gang.states() == ["armed"] * 2, 20.0, f"armed: {gang.states()}")
    for rank in ranks:
        old("go", gang.base(rank))
    until(lambda: gang.states() == ["ready"] * 2, 20.0, f"ready: {gang.states()}")
    assert [path.read_bytes() for path in agents(gang)] == [APPLICATION.read_bytes()] * 2
    yield gang
    gang.close()


def agents(gang: LocalGang) -> list[Path]:
    """The application that each node's agent runs from."""
    folders = [Path(gang.state_dir(rank), "gangs/gang0/runs", gang.run_id) for rank in range(gang.nodes)]
    return [path for folder in folders for path in folder.glob("agent.py*")]


def test_it_is_seen_and_ended(started: LocalGang) -> None:
    view = started.view()
    assert (view.state, view.service_healthy, len(view.nodes)) == (GangState.READY, True, 2)
    assert all(rank.state == "alive" for node in view.nodes for rank in node.ranks)
    stopped = down(started.inventory, DownRequest())
    assert [(node.was, node.told.state, node.clean) for node in stopped] == [("ready", "stopped", True)] * 2
    started.nothing_left()
    assert started.view().state is GangState.ABSENT


@pytest.mark.turns(of="a gang of an earlier release", play=2)
def test_its_failure_is_explained_and_it_is_restarted_as_it_was(started: LocalGang) -> None:
    started.kill_rank(3)
    until(lambda: started.view().state is GangState.FAILED, 20.0, "failed")
    (account,) = why(started.inventory, events=True)
    assert account.verdict is not None
    assert (account.verdict.cause.node, account.verdict.cause.tp_rank) == ("node1", 3)
    assert account.events
    restarted = restart(started.inventory, RestartRequest(timeout_s=30.0), Notes())
    assert [view.state for view in restarted.views] == [GangState.READY]
    with Fleet(started.gang.nodes) as fleet:
        assert staged_plan(fleet, started.gang).plan_id == "plan1"
    for node in down(started.inventory, DownRequest(now=True)):
        assert node.clean
    started.nothing_left()


@pytest.mark.turns(of="a gang of an earlier release", play=2)
def test_a_guard_brings_it_back_and_the_old_controller_ends_that(started: LocalGang) -> None:
    """An upgrade while gangs serve, and the way back: agents of this release come with the guard's restart."""
    before = started.view()
    guard(started.inventory, GuardRequest(once=True), Notes())
    assert started.view().run_id == before.run_id
    started.kill_rank(3)
    started.nothing_left()
    told = Notes()
    (left,) = guard(started.inventory, GuardRequest(once=True), told)
    after = started.view()
    assert (left.view.state, after.state) == (GangState.READY, GangState.READY), told.decisions
    assert (after.plan_id, after.run_id == before.run_id) == ("plan1", False)
    for rank in range(started.nodes):
        (told,) = old("report", started.base(rank) | {"gangs": ["gang0"]})["reports"]
        assert (told["state"], told["run_id"]) == ("ready", after.run_id)
    for rank in range(started.nodes):
        assert old("stop", {**started.base(rank), "run_id": after.run_id, "now": True})["state"] in ENDED
    started.nothing_left()


@pytest.mark.turns(of="a gang of an earlier release", play=2)
def test_an_agent_that_was_killed_leaves_nothing_that_down_does_not_end(started: LocalGang) -> None:
    started.signal_agent(1, signal.SIGKILL)
    until(lambda: report.of_gang(started.state_dir(1), "gang0")["alive"] is False, 10.0, "the agent's end")
    assert [node.clean for node in down(started.inventory, DownRequest())] == [True, True]
    started.nothing_left()


@pytest.mark.turns(of="a gang of an earlier release", play=2)
def test_the_old_controller_sees_and_ends_what_this_release_started(local: Local) -> None:
    gang = local(nodes=2)
    try:
        assert [view.state for view in gang.up()] == [GangState.READY]
        for rank in range(gang.nodes):
            (report,) = old("report", gang.base(rank) | {"gangs": ["gang0"]})["reports"]
            assert (report["state"], report["node"]) == ("ready", gang.name(rank))
        for rank in range(gang.nodes):
            assert old("stop", gang.base(rank) | {"now": True})["state"] in ENDED
        gang.nothing_left()
    finally:
        gang.close()
