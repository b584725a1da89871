"""Several gangs under one guard, with scripted views: no node is asked."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.gang.guarding import GuardAction, GuardDecision, Policy
from orchestrator.gang.steps.guard import guard as guarding
from orchestrator.gang.steps.guard.guard import GuardRequest, guard
from orchestrator.gang.steps.router import routing
from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.errors import LockHeld, Unreachable
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Reach, RouterSpec
from orchestrator.protocol.report import Cause, RailChange

BUSY = Policy(limit=0)
FAILED = GangState.FAILED
READY = GangState.READY


class Quiet:
    def planned(self, plan: object) -> None:
        pass

    def step(self, gang: str, words: str) -> None:
        pass

    def seen(self, views: object) -> None:
        pass

    def decided(self, gang: str, decision: GuardDecision) -> None:
        pass


def inventory(*names: str) -> Inventory:
    gangs = (
        GangSpec(name=name, nodes=(NodeSpec(name=f"{name}-node", gang=name, node_rank=0, reach=Reach(host="none")),))
        for name in names
    )
    return Inventory(path="hosts.yml", gangs=tuple(gangs))


class Script:
    """The result of each look at a gang; the last one repeats. last: this gang waits for the others' ends."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, last: str = "", **states: Sequence[GangState | GangView | Exception]
    ) -> None:
        self.last = last
        self.states = {name: list(told) for name, told in states.items()}
        self.told: list[str] = []
        monkeypatch.setattr(guarding, "LOOK_EVERY_S", 0.01)
        monkeypatch.setattr(guarding, "_guard_lock", lambda *_: nullcontext())
        monkeypatch.setattr(guarding, "see", self.see)
        monkeypatch.setattr(guarding, "interrupted", lambda *_, **__: ())
        monkeypatch.setattr(guarding, "run_hook", self.hook)

    def see(self, _: object, gangs: Sequence[GangSpec], **__: object) -> tuple[GangView, ...]:
        (gang,) = gangs
        told = self.states[gang.name]
        waits = gang.name == self.last and any(
            len(other) > 1 for name, other in self.states.items() if name != self.last
        )
        state = told.pop(0) if len(told) > 1 and not waits else told[0]
        if isinstance(state, Exception):
            raise state
        if isinstance(state, GangView):
            return (replace(state, name=gang.name),)
        return (GangView(name=gang.name, state=state, cause=Cause(node="n", text="TP0 died")),)

    def hook(self, hook: object, event: str, **words: Any) -> str:
        self.told.append(f"{event} {words['gang']}")
        return ""


def test_a_gang_that_is_given_up_is_guarded_again_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, last="b", a=[FAILED, FAILED, READY, READY, FAILED], b=[READY, FAILED])
    left = guard(inventory("a", "b"), GuardRequest(policy=BUSY), Quiet())
    assert sorted(script.told) == ["failed a", "failed a", "failed b"]
    assert [one.decision.do for one in left] == [GuardAction.GIVE_UP, GuardAction.GIVE_UP]
    assert all("TP0 died" in one.decision.why for one in left)


def test_a_defect_in_one_loop_ends_all_of_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    Script(monkeypatch, a=[READY], b=[READY, ZeroDivisionError("our own")])
    ended: list[BaseException] = []

    def run() -> None:
        try:
            guard(inventory("a", "b"), GuardRequest(), Quiet())
        except BaseException as defect:
            ended.append(defect)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20.0)
    assert [type(defect) for defect in ended] == [ZeroDivisionError]


ROUTER = RouterSpec(node=NodeSpec(name="front", gang="router", node_rank=0, reach=Reach(host="none")))


@pytest.mark.parametrize(("running", "ended"), [(False, []), (True, ["router"])])
def test_a_router_that_failed_or_hangs_is_restarted_as_a_gang_is(
    monkeypatch: pytest.MonkeyPatch, *, running: bool, ended: list[str]
) -> None:
    hung = GangView(
        name="",
        state=GangState.DEGRADED,
        trouble="hung",
        nodes=(NodeView(name="front", node_rank=0, state=NodeState.READY, alive=True),),
    )
    ill = hung if running else FAILED
    script = Script(monkeypatch, router=[ill, ill, READY, FAILED, FAILED])
    stopped, raised = list[str](), list[str]()
    monkeypatch.setattr(guarding, "GangLock", lambda *_, **__: nullcontext())
    monkeypatch.setattr(guarding, "stop", lambda _, gangs, *__, **___: stopped.append(gangs[0].name))

    def raise_router(*_: object) -> GangView:
        raised.append("router")
        return GangView(name="router", state=READY)

    monkeypatch.setattr(guarding, "raise_router", raise_router)
    front = routing.Router(ROUTER)
    request = GuardRequest(policy=Policy(limit=1), once=True)
    with ExitStack() as held:
        routed = replace(inventory("a"), router=ROUTER)
        post = guarding._RouterPost(routed, front.fleet, front.gang, request, Quiet(), router=front, held=held)
        for _ in range(3):
            post.stand()
    assert (stopped, raised) == (ended, ["router"])
    assert script.told == ["ready router", "failed router"] and post.decision.do is GuardAction.GIVE_UP


def test_a_router_that_another_guard_watches_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    Script(monkeypatch, a=[READY], router=[FAILED])

    def guard_lock(_: object, gang: GangSpec, __: object) -> Any:
        if gang.name == "router":
            raise LockHeld("held", where="front", fix="wait")
        return nullcontext()

    monkeypatch.setattr(guarding, "_guard_lock", guard_lock)
    (left,) = guard(replace(inventory("a"), router=ROUTER), GuardRequest(once=True, policy=BUSY), Quiet())
    assert left.view.name == "a"


def on_rails(run_id: str, *, up: bool) -> GangView:
    """It serves although a port failed, which may be back."""
    node = NodeView(
        name="node1", node_rank=0, state=NodeState.READY, rails=(RailChange(port="mlx5_1:1", up=up, at=1.0),)
    )
    return GangView(name="", state=READY, run_id=run_id, service_healthy=True, nodes=(node,))


def test_the_hook_is_called_once_for_a_port_that_is_back_and_again_in_another_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone, back = on_rails("r1", up=False), on_rails("r1", up=True)
    script = Script(monkeypatch, c=[READY, gone, back, back, gone, back, on_rails("r2", up=True), FAILED])
    guard(inventory("c"), GuardRequest(policy=BUSY), Quiet())
    assert script.told == ["back c", "back c", "failed c"]


def test_a_node_that_did_not_answer_is_not_asked_what_was_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[str]] = []
    error = Unreachable("no answer", where="gone", fix="switch it on")
    nodes = (
        NodeView(name="here", node_rank=0, state=NodeState.FAILED),
        NodeView(name="gone", node_rank=1, state=NodeState.UNREACHABLE, error=error),
    )
    Script(monkeypatch, one=[GangView(name="one", state=READY, nodes=nodes)])

    def interrupted(*_: object, only: Sequence[str]) -> tuple[()]:
        asked.append(only)
        return ()

    monkeypatch.setattr(guarding, "interrupted", interrupted)
    guard(inventory("one"), GuardRequest(once=True, policy=BUSY), Quiet())
    assert asked == [["here"]]
