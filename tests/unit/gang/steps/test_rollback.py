"""history, audit and rollback over real agents."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.commands import history, rehearse_restart, rehearse_resume, restart, would_stop
from tests.support.local_gang import Local, Notes
from tests.unit.gang.steps.test_up import up, with_env

from orchestrator.gang.steps.maintenance import MAINTENANCE
from orchestrator.gang.steps.restart_sequence import RestartRequest
from orchestrator.gang.steps.rollback import ROLLBACK
from orchestrator.model.gang_state import GangState
from orchestrator.protocol.errors import GangFailed, InputError

pytestmark = pytest.mark.processes
BACK = RestartRequest(verb=ROLLBACK, command="l40s-deploy rollback")


def test_back_to_the_plan_before_and_every_run_is_remembered(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    gang = local()
    plan = gang.plan("plan1")
    up(gang, plan, monkeypatch)
    with pytest.raises(InputError, match="no recorded run of a plan other than plan1"):
        restart(gang.inventory, BACK, Notes())
    up(gang, with_env(replace(plan, plan_id="plan2"), NEW="1"), monkeypatch, replace_it=True)
    before = gang.view()
    (rehearsed,) = rehearse_restart(gang.inventory, BACK, Notes())
    assert (rehearsed.plan_id, rehearsed.then) == ("plan2", "plan1")
    (rehearsed,) = rehearse_restart(gang.inventory, RestartRequest(verb=MAINTENANCE), Notes())
    assert rehearsed.then == "plan2" and rehearsed.what.startswith("would be restarted; gang0 will not serve for about")
    (rehearsed,) = would_stop(gang.inventory, (), now=True)
    assert rehearsed.what == "would be stopped on node0, node1, at once"
    with pytest.raises(InputError, match="no interrupted command has left anything"):
        rehearse_resume(gang.inventory, ())
    assert (gang.view().run_id, gang.view().state) == (before.run_id, GangState.READY), "a rehearsal changes nothing"
    (view,) = restart(gang.inventory, BACK, Notes()).views
    assert (view.state, view.plan_id) == (GangState.READY, "plan1")
    (kept,) = history(gang.inventory)
    assert [(run.plan_id, run.end) for run in kept.runs] == [
        ("plan1", "ready"),
        ("plan2", "stopped"),
        ("plan1", "stopped"),
    ]
    assert [run.command for run in kept.runs] == ["l40s-deploy rollback", "up", "up"]
    assert not kept.runs[0].ended and kept.runs[1].ended >= kept.runs[1].started > kept.runs[2].started
    refused = "ends: gang gang0: its nodes have no recorded run of a plan o"
    actions = [str(line["action"])[: len(refused)] for line in kept.audit]
    assert actions == ["begins", "ends", "begins", refused, *["begins", "ends"] * 2]


@pytest.mark.turns(of="up: the previous plan comes back", play=2)
def test_where_the_plan_before_does_not_come_up_the_gang_keeps_the_one_it_has(
    local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang = local()
    plan = gang.plan("plan1")
    up(gang, plan, monkeypatch)
    up(gang, with_env(replace(plan, plan_id="plan2"), NEW="1"), monkeypatch, replace_it=True)
    real = __import__("orchestrator.gang.steps.raising", fromlist=["raise_all"]).raise_all

    def fails_once(*args: object, **more: object) -> object:
        monkeypatch.setattr("orchestrator.gang.steps.raising.raise_all", real)
        raise GangFailed("does not come up", where="gang gang0", fix="look")

    monkeypatch.setattr("orchestrator.gang.steps.raising.raise_all", fails_once)
    with pytest.raises(GangFailed, match="gang0 is back on plan plan2"):
        restart(gang.inventory, BACK, Notes())
    assert gang.view().plan_id == "plan2" and gang.view().state is GangState.READY
