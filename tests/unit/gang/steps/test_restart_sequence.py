"""A gang's turn: the steps done while its engine still drains; and what goes on after an interruption."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.gang.operations import GangOperation, OperationKind
from orchestrator.gang.steps import raising, restart_sequence, resume
from orchestrator.gang.steps.raising import Rising, StartedGangs
from orchestrator.gang.steps.replay import Staged
from orchestrator.gang.steps.restart import ROLLING, RestartRequest
from orchestrator.gang.steps.restart_sequence import GangRestart, RestartSequence
from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import GangSpec, NodeSpec, Reach

GANG = GangSpec(name="g", nodes=(NodeSpec(name="node0", gang="g", node_rank=0, reach=Reach(host="node0")),))


@pytest.mark.parametrize("now", [False, True])
def test_a_gang_is_drained_stopped_worked_on_and_started(monkeypatch: pytest.MonkeyPatch, now: bool) -> None:
    order: list[str] = []

    def noted(word: str) -> Any:
        return lambda *_, **__: order.append(word)

    def raised(*_: Any, **__: Any) -> StartedGangs:
        order.append("start")
        return StartedGangs(views=(), ready_before=frozenset())

    for name in ("set_aside", "take_out", "stop"):
        monkeypatch.setattr(restart_sequence, name, noted(name))
    monkeypatch.setattr(raising, "raise_all", raised)
    operation = SimpleNamespace(turn=noted("turn"), finished=noted("finished"))
    start = Rising(gang=GANG, plan_id="p", document={}, requests=lambda run, key: {})
    check, view = Staged(gang=GANG, requests={}), GangView(name="g", state=GangState.READY, service_url="u")
    one = GangRestart(gang=GANG, view=view, before=None, check=check, start=start)
    steps = RestartSequence(
        inventory=SimpleNamespace(),  # type: ignore[arg-type]
        fleet=SimpleNamespace(),  # type: ignore[arg-type]
        router=SimpleNamespace(),  # type: ignore[arg-type]
        watcher=SimpleNamespace(),
        operation=operation,  # type: ignore[arg-type]
        done="restarted",
        timeout_s=9,
        now=now,
        work=noted("work"),
    )
    monkeypatch.setattr(steps, "_back", noted("put_back"))
    assert steps.run([one]) == ()
    assert order == ["turn", "take_out" if now else "set_aside", "stop", "work", "start", "put_back", "finished"]


KEPT = {"timeout_s": 7.0, "of a later release": 1, "command": "no", "verb": "no"}


@pytest.mark.parametrize(
    ("what", "options", "goes_on"),
    [
        (OperationKind.ROLLING, KEPT, True),
        (OperationKind.ROLLING, {"without_router": True}, False),
        (OperationKind.RESTART, {}, False),
        (OperationKind.MAINTENANCE, {}, False),
        (OperationKind.CHANGE, {}, False),
    ],
)
def test_only_what_others_serve_through_goes_on_by_itself(
    monkeypatch: pytest.MonkeyPatch, what: OperationKind, options: dict[str, Any], goes_on: bool
) -> None:
    asked: list[RestartRequest] = []

    def restart(_: object, request: RestartRequest, __: object) -> Any:
        asked.append(request)
        return SimpleNamespace(views=("a", "b"))

    monkeypatch.setattr(resume, "restart", restart)
    left = [GangOperation(gang=gang, what=what, command="l40s-deploy typed", options=options) for gang in ("a", "b")]
    went_on: Any = resume.go_on(SimpleNamespace(), left, "l40s-deploy up", SimpleNamespace())  # type: ignore[arg-type]
    views, words = went_on
    if goes_on:
        wanted = RestartRequest(verb=ROLLING, gangs=("a", "b"), command="l40s-deploy up", timeout_s=7.0)
        assert asked == [wanted] and list(views) == ["a", "b"] and words == ()
    else:
        assert not asked and views == ()
        assert [word.split()[0] for word in words] == ["a", "b"]
        assert all("serves as before" in word and "run `l40s-deploy typed` again" in word for word in words)
