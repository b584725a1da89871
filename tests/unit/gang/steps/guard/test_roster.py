"""A guard whose inventory changes while it looks: which gangs it guards then, and what it says. No node is asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.local_gang import Notes
from tests.support.waiting import until

from orchestrator.gang.guarding import GuardAction, GuardMemory, Policy, on_other_nodes
from orchestrator.gang.steps.guard import post as posts
from orchestrator.gang.steps.guard import roster
from orchestrator.gang.steps.guard.guard import GuardedGang, guard
from orchestrator.gang.steps.guard.post import GangPost, Orders
from orchestrator.gang.steps.guard.request import GuardRequest
from orchestrator.gang.steps.guard.rereading import InventoryWatch
from orchestrator.gang.steps.guard.watches import RouterWatch
from orchestrator.gang.view import GangView
from orchestrator.loading.inventory import load_inventory
from orchestrator.loading.stamps import stamp_of
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import (
    Event,
    GangSpec,
    Inventory,
    NodeSpec,
    Reach,
    ReceiverKind,
    Recipient,
    RouterSpec,
)
from orchestrator.model.notice import Notice
from orchestrator.protocol.errors import DeployError, InputError, LockHeld
from orchestrator.protocol.report import Cause

FAILED, READY = GangState.FAILED, GangState.READY
GIVES_UP = Policy(limit=0)
WRONG = InputError("found no gang", where="hosts.yml:3", fix="write one")


def node(name: str, gang: str = "a", rank: int = 0, **keys: Any) -> NodeSpec:
    return NodeSpec(name=name, gang=gang, node_rank=rank, **{"reach": Reach(host="none"), **keys})


def gang(name: str, *nodes: NodeSpec, spares: tuple[NodeSpec, ...] = ()) -> GangSpec:
    return GangSpec(name=name, nodes=nodes or (node(f"{name}-node", name),), spares=spares)


def inventory(*gangs: GangSpec | str, **keys: Any) -> Inventory:
    specs = tuple(gang(one) if isinstance(one, str) else one for one in gangs)
    return Inventory(path="hosts.yml", gangs=specs, **keys)


@dataclass
class World(Notes):
    """A guard in a thread of its own, over gangs whose states a test sets.

    fresh: what the next reread finds; looks: which gang each look was at; told: events of hooks; locks: of gangs with
    their nodes, as they are taken and given back; taken: gangs that another guard has
    """

    states: dict[str, GangState] = field(default_factory=dict)
    fresh: list[Inventory | DeployError] = field(default_factory=list)
    looks: list[GangSpec] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    locks: list[str] = field(default_factory=list)
    taken: tuple[str, ...] = ()
    notices: list[Notice] = field(default_factory=list)
    receivers: list[Sequence[Recipient]] = field(default_factory=list)
    renewed: list[Inventory] = field(default_factory=list)
    left: list[tuple[GuardedGang, ...]] = field(default_factory=list)

    def see(self, _: object, gangs: Sequence[GangSpec], **__: object) -> tuple[GangView, ...]:
        (one,) = gangs
        self.looks.append(one)
        return (GangView(name=one.name, state=self.states[one.name], cause=Cause(node="n", text="TP0 died")),)

    def hook(self, _: object, event: str, **words: Any) -> str:
        self.told.append(f"{event} {words['gang']}")
        return ""

    @contextmanager
    def lock(self, _: object, one: GangSpec, __: object) -> Iterator[None]:
        words = f"{one.name}: {', '.join(node.name for node in one.machines)}"
        if one.name in self.taken:
            raise LockHeld(f"another guard has {one.name}", where="a-node", fix="wait")
        self.locks.append(f"+{words}")
        yield
        self.locks.append(f"-{words}")

    def look(self, view: GangView) -> None:
        """As a notifier."""

    def tell(self, notice: Notice) -> None:
        self.notices.append(notice)

    def renew(self, recipients: Sequence[Recipient]) -> None:
        self.receivers.append(recipients)

    def reread(self) -> Inventory | DeployError | None:
        return self.fresh.pop(0) if self.fresh else None

    def guard(self, found: Inventory, *names: str, reread: Callable[[], Any] | None = None) -> threading.Thread:
        request = GuardRequest(
            gangs=names, policy=GIVES_UP, notifier=self, reread=reread or self.reread, renewed=self.renewed.append
        )
        thread = threading.Thread(target=lambda: self.left.append(guard(found, request, self)), daemon=True)
        thread.start()
        return thread

    def looked(self, name: str) -> None:
        """Until two more looks at this gang have begun: the first may know an older inventory."""
        before = self.seen_of(name)
        until(lambda: self.seen_of(name) >= before + 2, 20.0, lambda: f"{name}: {self.steps}")

    def seen_of(self, name: str) -> int:
        return sum(one.name == name for one in self.looks)

    def says(self, words: str) -> None:
        until(lambda: any(words in said for said in self.steps), 20.0, lambda: f"{words!r} in {self.steps}")

    def ends(self, thread: threading.Thread) -> None:
        self.states.update(dict.fromkeys(self.states, FAILED))
        thread.join(20.0)
        assert not thread.is_alive(), self.steps


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(states=dict.fromkeys("abc", READY))
    monkeypatch.setattr(posts, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(roster, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(posts, "_guard_lock", made.lock)
    monkeypatch.setattr(posts, "see", made.see)
    monkeypatch.setattr(posts, "interrupted", lambda *_, **__: ())
    monkeypatch.setattr(posts, "run_hook", made.hook)
    return made


def test_a_gang_that_left_the_inventory_is_not_acted_on_and_one_that_came_is(world: World) -> None:
    thread = world.guard(inventory("a", "b"))
    world.looked("b")
    world.fresh.append(inventory("a", "c"))
    world.says("no such gang any more")
    until(lambda: "-b: b-node" in world.locks, 20.0, lambda: str(world.locks))
    looks = world.seen_of("b")
    world.states["b"] = FAILED
    world.looked("c")
    assert world.seen_of("b") == looks
    world.ends(thread)
    assert sorted(world.told) == ["failed a", "failed c"]
    assert [one.view.name for one in world.left[0]] == ["a", "c"]
    (notice,) = (one for one in world.notices if one.event is Event.CHANGED)
    assert notice.subject == "inventory"
    assert notice.text == "the guard goes on by it: gang b is gone (b-node); gang c is new (c-node)"


def test_a_guard_of_one_gang_waits_for_it_to_come_back_and_takes_no_other(world: World) -> None:
    thread = world.guard(inventory("a", "b"), "a")
    world.looked("a")
    world.fresh.append(inventory("b", gang("prod", node("a-node"))))
    world.says("gang a is called prod now (a-node)")
    looks = world.seen_of("a")
    world.fresh.append(inventory("a", "b"))
    until(lambda: world.seen_of("a") > looks + 2, 20.0)
    world.ends(thread)
    assert {one.name for one in world.looks} == {"a"} and world.told == ["failed a"]


def test_a_spare_and_an_address_that_come_later_are_used(world: World) -> None:
    thread = world.guard(inventory("a", "b"))
    world.looked("a")
    spare = node("s", rank=1, spare=True)
    world.fresh.append(inventory(gang("a", node("a-node", reach=Reach(host="10.0.0.9")), spares=(spare,)), "b"))
    world.says("a: s is new, a spare; ansible_host of a-node")
    world.looked("a")
    assert [one.name for one in world.looks if one.spares][:1] == ["a"]
    assert world.locks == ["+a: a-node", "+b: b-node", "-a: a-node", "+a: a-node, s"]
    world.ends(thread)


def test_what_changes_nothing_for_a_gangs_machines_keeps_its_lock(world: World) -> None:
    slack = Recipient(kind=ReceiverKind.SLACK, url="https://hooks.example.org/x")
    thread = world.guard(inventory("a"))
    world.looked("a")
    world.fresh.append(inventory("a", notify=(slack,)))
    world.says("l40s_notify: slack is told from now on")
    world.looked("a")
    assert world.receivers == [(slack,)] and world.locks == ["+a: a-node"]
    assert [one.notify for one in world.renewed] == [(slack,)]
    world.ends(thread)


def test_an_inventory_that_is_wrong_is_said_once_and_the_old_one_goes_on(world: World) -> None:
    thread = world.guard(inventory("a"))
    world.looked("a")
    world.fresh.append(WRONG)
    world.says("it can't be used, and the guard goes on by the old one: hosts.yml:3: found no gang; write one")
    world.looked("a")
    world.fresh.append(inventory("a"))
    world.says("it can be used again")
    world.ends(thread)
    assert world.told == ["failed a"]
    events = [one.event for one in world.notices if one.subject == "inventory"]
    assert events == [Event.FINDING, Event.RESTORED]


def test_a_gang_that_another_guard_has_is_left_to_it_until_it_is_free(world: World) -> None:
    thread = world.guard(inventory("a"))
    world.looked("a")
    world.taken, world.states["b"] = ("b",), FAILED
    world.fresh.append(inventory("a", "b"))
    until(lambda: any("another guard has b" in one.why for one in world.decisions), 20.0)
    assert world.seen_of("b") == 0
    world.taken = ()
    world.looked("b")
    world.ends(thread)
    assert sorted(world.told) == ["failed a", "failed b"]


def test_a_guard_that_finds_another_one_at_its_start_says_so(world: World) -> None:
    world.taken = ("b",)
    with pytest.raises(LockHeld):
        guard(inventory("a", "b"), GuardRequest(), world)
    assert world.locks == ["+a: a-node", "-a: a-node"]


def test_a_router_that_moves_is_watched_where_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.states["router"] = READY
    monkeypatch.setattr(RouterWatch, "start", lambda *_, **__: None)
    one, other = (RouterSpec(node=node(name, "router")) for name in ("front", "door"))
    thread = world.guard(inventory("a", router=one))
    world.looked("router")
    world.fresh.append(inventory("a", router=other))
    world.says("the router is on door now, no longer on front")
    until(lambda: "+router: door" in world.locks, 20.0, lambda: str(world.locks))
    world.looked("router")
    assert "-router: front" in world.locks
    world.ends(thread)


@pytest.mark.parametrize("gone", [True, False])
def test_whoever_is_relieved_while_it_looks_does_nothing_more(
    world: World, monkeypatch: pytest.MonkeyPatch, *, gone: bool
) -> None:
    world.states["a"] = FAILED
    found = inventory("a")
    post = GangPost(found, nullcontext(), found.gangs[0], GuardRequest(), world)  # type: ignore[arg-type]

    def see(*_: object, **__: object) -> tuple[GangView, ...]:
        if gone:
            post.ended.set()
        else:
            post.wanted = Orders(found, found.gangs[0], post.places)
        return world.see(None, found.gangs)

    monkeypatch.setattr(posts, "see", see)
    monkeypatch.setattr(GangPost, "_restart", lambda *_: pytest.fail("it was restarted"))
    post._look_again()
    assert post.decision.do is (GuardAction.NOTHING if gone else GuardAction.RESTART)
    assert not world.decisions and (post.view is None) is gone


def test_other_machines_may_do_what_the_old_ones_could_not() -> None:
    memory = GuardMemory(restarts=2, hopeless=("b",), unfit=("s",), barred=("b",), on_fewer_at=9.0, lost={"b": 1.0})
    assert on_other_nodes(memory) == GuardMemory(restarts=2, lost={"b": 1.0})


HOSTS = "all: {children: {gangs: {children: {a: {hosts: {a-node: {ansible_host: none}}}}}}}\n"


def test_real_files_are_read_again_by_a_guard_that_runs(world: World, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.yml"
    hosts.write_text(HOSTS)
    reread = InventoryWatch(partial(stamp_of, hosts), lambda: load_inventory(hosts))
    thread = world.guard(load_inventory(hosts), reread=reread)
    world.looked("a")
    hosts.write_text(HOSTS[:60])
    world.says("it can't be used, and the guard goes on by the old one")
    hosts.write_text(HOSTS.replace("none}", "none}, s: {ansible_host: other, l40s_role: spare}"))
    world.says("a: s is new, a spare")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/a.yml").write_text("l40s_lease: 60\n")
    world.says("l40s_lease of a-node, s")
    (tmp_path / "host_vars").mkdir()
    (tmp_path / "host_vars/s.yml").write_text("l40s_lease: [\n")
    until(lambda: sum("can't be used" in words for words in world.steps) == 2, 20.0, lambda: str(world.steps))
    world.looked("a")
    assert world.looks[-1].spares[0].lease_s == 60.0
    world.ends(thread)
    assert replace(world.left[0][0].view, nodes=()).name == "a"
