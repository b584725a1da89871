"""restart over real agents: the same plan again, from the nodes' files."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.commands import down, restart, why
from tests.support.local_gang import Local, LocalGang, Notes

from orchestrator.gang.steps import down as down_module
from orchestrator.gang.steps import restart_sequence
from orchestrator.gang.steps.down import DownRequest, StopResult, refuse_leftovers
from orchestrator.gang.steps.restart_sequence import RestartRequest
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.protocol.errors import GangFailed, InputError
from orchestrator.protocol.verbs import StopAnswer

pytestmark = pytest.mark.processes


def test_the_same_plan_runs_again_under_a_new_run_and_key(serving: LocalGang) -> None:
    before = serving.view()
    told = Notes()
    done = restart(serving.inventory, RestartRequest(), told)
    (after,) = done.views
    assert after.state is GangState.READY
    assert after.plan_id == before.plan_id and after.run_id != before.run_id
    assert "gang0 will not serve for about" in told.steps[1] and not told.plans, "nothing is planned anew"
    assert 0 < done.seconds < 30
    assert why(serving.inventory)[0].verdict is None


@pytest.mark.turns(of="restart: interrupted")
def test_a_restart_that_is_given_up_before_anything_was_told_to_stop(
    serving: LocalGang, monkeypatch: pytest.MonkeyPatch
) -> None:
    def given_up(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(down_module, "stop_gangs", given_up)
    told = Notes()
    with pytest.raises(KeyboardInterrupt):
        restart(serving.inventory, RestartRequest(), told)
    assert told.steps[-1].endswith("gang0 still serves; continue: l40s-deploy up gang0")
    assert serving.view().state is GangState.READY


@pytest.mark.turns(of="restart: interrupted")
def test_an_interrupted_restart_says_that_the_gang_is_stopped_and_how_to_continue(
    serving: LocalGang, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = down_module.stop

    def interrupted(*arguments: Any, **more: Any) -> None:
        stop(*arguments, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(restart_sequence, "stop", interrupted)
    told = Notes()
    with pytest.raises(KeyboardInterrupt):
        restart(serving.inventory, RestartRequest(now=True), told)
    assert told.steps[-1].endswith("gang0 is stopped; continue: l40s-deploy up gang0")


def test_a_failed_gang_and_one_that_was_stopped_come_back(serving: LocalGang) -> None:
    serving.kill_rank(2)
    serving.nothing_left()
    restart(serving.inventory, RestartRequest(), Notes())
    (account,) = why(serving.inventory)
    assert account.verdict is not None and not account.verdict.newest
    assert (account.verdict.cause.node, account.verdict.cause.signal) == ("node1", 9)
    down(serving.inventory, DownRequest())
    assert restart(serving.inventory, RestartRequest(), Notes()).views[0].state is GangState.READY


def test_without_a_plan_there_is_nothing_to_start_again(local: Local) -> None:
    gang = local()
    with pytest.raises(InputError, match="was never started"):
        restart(gang.inventory, RestartRequest(), Notes())


def test_a_gang_of_other_nodes_is_refused_before_anything_stops(local: Local) -> None:
    gang = local(nodes=2)
    gang.up()
    fewer = Inventory(path="hosts.yml", gangs=(GangSpec(name="gang0", nodes=(gang.spec(0),)),))
    with pytest.raises(InputError, match=r"node0, node1; of these, the inventory's gang has node0"):
        restart(fewer, RestartRequest(), Notes())
    assert gang.view().state is GangState.READY


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (StopAnswer(state="failed", left_behind=(7, 8)), "process 7, 8 does not exit"),
        (StopAnswer(state="stopping", alive=True), "its agent does not exit"),
        (StopAnswer(state="stopped", held=("GPU 0: by pid 7",)), "memory is still held: GPU 0: by"),
    ],
)
def test_what_is_in_the_way_is_named(told: StopAnswer, words: str) -> None:
    with pytest.raises(GangFailed, match=words):
        refuse_leftovers([StopResult(gang="g", node="a", told=told)])
