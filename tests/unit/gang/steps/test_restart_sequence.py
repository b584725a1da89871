"""A gang's turn: the steps done while its engine still drains; and what goes on after an interruption."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli.screen import Screen
from orchestrator.gang.commands import restart as typed
from orchestrator.gang.operations import GangOperation, OperationKind
from orchestrator.gang.steps import raising, restart, restart_sequence
from orchestrator.gang.steps.restart_sequence import ROLLING, GangRestart, RestartRequest, RestartSequence, RestartVerb
from orchestrator.gang.steps.staging import Staged
from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import GangSpec, NodeSpec, Reach
from orchestrator.protocol.errors import DeployError, InputError, Unreachable
from orchestrator.protocol.staging import Endpoint, StagingRequest

GANG = GangSpec(name="g", nodes=(NodeSpec(name="node0", gang="g", node_rank=0, reach=Reach(host="node0")),))
REQUEST = StagingRequest(gang="g", run_id="r", node="node0", node_rank=0, nnodes=1, leader=Endpoint(port=1))


def ctrl_c(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def maintenance(order: list[str], work: Any, *, now: bool = False) -> tuple[RestartSequence, GangRestart]:
    view = GangView(name="g", state=GangState.READY, service_url="u")
    steps = RestartSequence(
        fleet=SimpleNamespace(),  # type: ignore[arg-type]
        router=SimpleNamespace(refuse_last_key=lambda _: None),  # type: ignore[arg-type]
        front=None,
        watcher=SimpleNamespace(step=lambda *_: None),
        request=RestartRequest(verb=RestartVerb(what=OperationKind.MAINTENANCE, work=work), now=now),
        check=lambda _: order.append("check"),
    )
    return steps, GangRestart(gang=GANG, view=view, before=None, plan=Staged(gang=GANG, requests={"node0": REQUEST}))


def test_a_second_ctrl_c_finds_the_nodes_left_to_their_operator_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at nodes that are being worked on waits; a guard would start the gang meanwhile."""
    for name in ("set_aside", "stop"):
        monkeypatch.setattr(restart_sequence, name, lambda *_, **__: None)
    monkeypatch.setattr(restart_sequence, "see", ctrl_c)
    kept: list[GangOperation] = []
    steps, one = maintenance([], ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        steps.run([one], {"g": SimpleNamespace(begin=kept.append)})  # type: ignore[dict-item]
    assert kept[-1].turning and kept[-1].by_hand


def test_ctrl_c_in_a_rehearsal_speaks_of_no_gang_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed, "rehearse_restart", ctrl_c)
    nobody: Any = None
    with pytest.raises(KeyboardInterrupt):  # main says that it was interrupted
        typed.carry_out(nobody, RestartRequest(), Namespace(dry_run=True), Screen(), nobody)


@pytest.mark.parametrize("run", [" ", "sh -c 'x"])
def test_a_command_line_that_can_not_be_run_is_refused_before_anything_stops(run: str) -> None:
    with pytest.raises(InputError):
        RestartRequest(run=run)


@pytest.mark.parametrize("now", [False, True])
def test_a_gang_is_drained_stopped_worked_on_and_started(monkeypatch: pytest.MonkeyPatch, now: bool) -> None:
    order: list[str] = []

    def noted(word: str) -> Any:
        return lambda *_, **__: order.append(word)

    def raised(*_: Any, **__: Any) -> tuple[()]:
        order.append("start")
        return ()

    for name in ("set_aside", "take_out", "stop", "put_back"):
        monkeypatch.setattr(restart_sequence, name, noted(name))
    monkeypatch.setattr(raising, "raise_all", raised)
    steps, one = maintenance(order, noted("work"), now=now)
    lock: Any = SimpleNamespace(begin=lambda begun: order.append(f"turning: {begun.turning}"), finish=noted("finished"))
    assert steps.run([one], {"g": lock}) == ()
    steps_done = ["take_out" if now else "set_aside", "stop", "work", "start", "put_back", "finished"]
    assert order == ["turning: False", "turning: True", *steps_done]


@pytest.mark.parametrize("redirected", [False, True])
def test_without_a_router_only_who_redirects_requests_waits_for_the_last_one(
    monkeypatch: pytest.MonkeyPatch, redirected: bool
) -> None:
    """Clients go on sending: none of them is the last, and nothing would ever be stopped."""
    order: list[str] = []
    for name in ("set_aside", "stop", "rejoin"):
        monkeypatch.setattr(restart_sequence, name, lambda *_, name=name, **__: order.append(name))
    monkeypatch.setattr(raising, "raise_all", lambda *_, **__: ())
    steps, turn = maintenance(order, lambda *_: None)
    steps.router, steps.request = None, replace(steps.request, without_router=redirected)
    lock: Any = SimpleNamespace(begin=lambda _: None, finish=lambda: None)
    steps.run([turn], {"g": lock})
    assert order[0] == ("set_aside" if redirected else "stop")


@pytest.mark.parametrize("ends", [KeyboardInterrupt(), Unreachable("no route", where="node0", fix="look")])
def test_what_a_gate_did_not_let_pass_gets_no_requests(monkeypatch: pytest.MonkeyPatch, ends: BaseException) -> None:
    """Not in passing either, when what is begun is put back."""
    entered: list[GangView] = []
    new = GangView(name="g", state=GangState.READY, service_url="u", run_id="new")
    for name in ("set_aside", "stop"):
        monkeypatch.setattr(restart_sequence, name, lambda *_, **__: None)
    monkeypatch.setattr(raising, "raise_all", lambda *_, **__: (new,))
    monkeypatch.setattr(restart_sequence, "see", lambda *_, **__: (new,))

    def take_in_all(_: object, views: Iterable[GangView]) -> dict[str, DeployError]:
        entered.extend(views)
        return {}

    monkeypatch.setattr(restart_sequence, "take_in_all", take_in_all)
    kept: list[GangOperation] = []
    steps, turn = maintenance([], None)

    def judge(_: object) -> None:
        assert kept[-1].unjudged
        raise ends

    steps.request = replace(steps.request, verb=RestartVerb(what=OperationKind.CHANGE, rolls=True))
    steps.judged, steps.accept = ("g",), judge
    with pytest.raises(type(ends)):
        steps.run([turn], {"g": SimpleNamespace(begin=kept.append)})  # type: ignore[dict-item]
    assert entered == [] and kept[-1].turning and kept[-1].unjudged


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

    def restarted(_: object, request: RestartRequest, __: object) -> Any:
        asked.append(request)
        return SimpleNamespace(views=("a", "b"))

    monkeypatch.setattr(restart, "restart", restarted)
    left = [GangOperation(gang=gang, what=what, command="l40s-deploy typed", options=options) for gang in ("a", "b")]
    nobody: Any = SimpleNamespace()
    views: Any
    views, words = restart.go_on(nobody, left, "l40s-deploy up", nobody)
    if goes_on:
        wanted = RestartRequest(verb=ROLLING, gangs=("a", "b"), command="l40s-deploy up", timeout_s=7.0)
        assert asked == [wanted] and list(views) == ["a", "b"] and words == ()
    else:
        assert not asked and views == ()
        assert [word.split()[0] for word in words] == ["a", "b"]
        assert all("serves as before" in word and "run `l40s-deploy typed` again" in word for word in words)
