"""`router add` and `router remove`: one gang's entry, and who is told of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.support.commands import unasked
from tests.support.reference_cluster import gang

from orchestrator.engines.serving import Worker
from orchestrator.gang.steps import operation
from orchestrator.gang.steps.down import DownRequest
from orchestrator.gang.steps.router import entry, routing
from orchestrator.gang.steps.router.client import Router
from orchestrator.gang.steps.router.entry import add_gang, remove_gang
from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import Inventory, NodeSpec, Reach, RouterSpec
from orchestrator.protocol.errors import InputError, LockHeld, NodeError, Unreachable

FRONT = NodeSpec(name="front", gang="router", node_rank=0, reach=Reach(connection="local", host="localhost"))
GANGS = tuple(replace(gang(1), name=name) for name in ("a", "b"))
ROUTED = Inventory(path="hosts.yml", gangs=GANGS, router=RouterSpec(node=FRONT, aliases={"a": ("default",)}))


def seen(name: str, state: GangState = GangState.READY, model: str = "m") -> GangView:
    serves = state is GangState.READY
    return GangView(name=name, state=state, model=model, service_healthy=serves, service_url=f"http://{name}")


@dataclass
class Front:
    """The router, the gangs, and what was done in which order."""

    views: list[GangView] = field(default_factory=lambda: [seen("a"), seen("b")])
    behind: list[str] = field(default_factory=lambda: ["http://a", "http://b"])
    state: GangState = GangState.READY
    done: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    others_turn: list[Callable[[], None]] = field(default_factory=lambda: [lambda: None, lambda: None])
    """What each look at the other commands comes to."""

    def step(self, _: str, words: str) -> None:
        self.said.append(words)

    def __enter__(self) -> Front:
        self.done.append("turn")
        return self

    def __exit__(self, *_: object) -> None:
        self.done.append("turn over")

    def wait(self) -> bool:
        return False

    def still_ours(self) -> None:
        self.done.append("still ours")


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    made = Front()
    router: Any = Router

    def take_out(_: object, url: str) -> None:
        made.done.append(f"out {url}")
        made.behind.remove(url)

    def take_in(_: object, url: str, run: str = "", aliases: tuple[str, ...] = ()) -> None:
        made.done.append(f"in {url} {' '.join(aliases)}".strip())
        made.behind.append(url)

    monkeypatch.setattr(
        router, "view", lambda _: GangView(name="router", state=made.state, service_healthy=made.state.was_ready)
    )
    monkeypatch.setattr(
        router, "workers", lambda _: tuple(Worker(url, url, healthy=True, load=0) for url in made.behind)
    )
    monkeypatch.setattr(router, "take_out", take_out)
    monkeypatch.setattr(router, "take_in", take_in)
    monkeypatch.setattr(router, "looks_at_models", lambda _: True)
    monkeypatch.setattr(operation, "see", lambda *_, **__: made.views)
    monkeypatch.setattr(entry, "refuse_others_turn", lambda *_: made.others_turn.pop(0)())
    monkeypatch.setattr(entry, "wait_until_drained", lambda *_: made.done.append("drained"))
    yield made


def remove(front: Front, name: str) -> None:
    turn: Any = front
    remove_gang(unasked(ROUTED), name, turn, turn)


def test_a_gang_is_removed_in_its_turn_and_drained(front: Front) -> None:
    remove(front, "a")
    assert front.done == ["turn", "still ours", "out http://a", "drained", "turn over"]
    assert front.behind == ["http://b"] and not any("nobody else" in words for words in front.said)


def test_that_nobody_else_serves_its_model_is_said_first(front: Front) -> None:
    front.views = [seen("a"), seen("b", model="other")]
    remove(front, "a")
    assert front.said[0].startswith("nobody else serves m behind the router")


def test_a_gang_that_has_failed_serves_nobody_though_the_router_has_not_looked_yet(front: Front) -> None:
    front.views = [seen("a"), seen("b", GangState.FAILED)]
    remove(front, "a")
    assert front.said[0].startswith("nobody else serves m behind the router")


def test_a_gang_is_added_by_its_aliases(front: Front) -> None:
    front.behind = ["http://b"]
    add_gang(unasked(ROUTED), "a")
    assert front.done == ["in http://a default"]


@pytest.mark.parametrize(("typed", "done"), [("before", []), ("meanwhile", ["in http://a default", "out http://a"])])
def test_a_gang_that_another_command_takes_out_is_not_added(front: Front, typed: str, done: list[str]) -> None:
    """One that drains must get no requests."""

    def held() -> None:
        raise LockHeld("root@head changes it with `restart a`", where="gang a", fix="run the command again")

    front.behind = ["http://b"]
    front.others_turn = [held] if typed == "before" else [lambda: None, held]
    with pytest.raises(LockHeld, match="restart a"):
        add_gang(unasked(ROUTED), "a")
    assert front.done == done


def test_only_a_gang_that_serves_is_added(front: Front) -> None:
    front.views = [seen("a", GangState.STARTING), seen("b")]
    with pytest.raises(InputError, match="it is starting") as refused:
        add_gang(unasked(ROUTED), "a")
    assert "start it by `up` with --gang a and a --model" in refused.value.fix and not front.done


@pytest.mark.parametrize("verb", ["add", "remove"])
def test_a_router_that_does_not_serve_and_a_gang_that_is_not_there(front: Front, verb: str) -> None:
    turn: Any = front

    def carry_out(name: str) -> None:
        add_gang(unasked(ROUTED), name) if verb == "add" else remove_gang(unasked(ROUTED), name, turn, turn)

    with pytest.raises(InputError, match="no gang is called"):
        carry_out("z")
    front.state = GangState.ABSENT
    with pytest.raises(NodeError, match="the router is absent"):
        carry_out("a")
    assert not [done for done in front.done if done.startswith(("in", "out"))]


class Asked(Exception):
    """now: at once; left: the gang was taken out of the router first"""

    def __init__(self, *, now: bool, left: bool) -> None:
        super().__init__(now, left)


@pytest.mark.parametrize(
    ("behind", "state", "now", "left"),
    [
        (["http://a", "http://b"], GangState.READY, False, True),
        (["http://b"], GangState.READY, True, False),
        (["http://a"], GangState.ABSENT, True, False),
        (None, GangState.READY, False, False),
    ],
    ids=["put there by another command", "not there", "no router serves", "it can't be asked"],
)
def test_a_gang_that_is_measured_is_stopped_at_once_only_where_no_client_reaches_it(
    front: Front, monkeypatch: pytest.MonkeyPatch, behind: list[str] | None, state: GangState, *, now: bool, left: bool
) -> None:
    front.state, front.behind = state, behind or []
    if behind is None:
        router: Any = Router
        unread = Unreachable("no route", where="front", fix="look")

        def refused(_: object) -> tuple[Worker, ...]:
            raise unread

        monkeypatch.setattr(router, "workers", refused)

    def down(_: object, request: DownRequest, *, before_stop: Callable[[], object]) -> None:
        before_stop()
        raise Asked(now=request.now, left="out http://a" in front.done)

    monkeypatch.setattr(entry, "down", down)
    monkeypatch.setattr(routing, "claimed", lambda _: {})
    with pytest.raises(Asked) as asked:
        entry.stop_measured(unasked(ROUTED), "a", "sweep", front.said.append)
    assert asked.value.args == (now, left)
    assert bool(front.said) is not now
