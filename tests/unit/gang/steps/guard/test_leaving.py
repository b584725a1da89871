"""If another run's leader serves at another address, the router or the operator is informed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.reference_cluster import gang, topologies
from tests.support.reference_plan import plan_of, staged

from orchestrator.engines.serving import Worker
from orchestrator.gang.steps import up
from orchestrator.gang.steps.up import leave
from orchestrator.model.errors import NodeError
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Reach, RouterSpec
from orchestrator.model.per_node import PerNode
from orchestrator.model.plan import Plan
from orchestrator.model.survivors import without
from orchestrator.protocol.verbs import StagedAnswer

SPEC = gang(4)
FACTS = topologies(SPEC)
ROUTER = RouterSpec(node=NodeSpec(name="front", gang="router", node_rank=0, reach=Reach(host="front")))
INVENTORY = Inventory(path="hosts.yml", gangs=(SPEC,), router=ROUTER)


def planned(spec: GangSpec) -> Plan:
    return plan_of(spec, facts=FACTS, adapt=True)


def ran(spec: GangSpec, run_id: str) -> dict[str, StagedAnswer]:
    """Each node's knowledge of its run."""
    requests = staged(spec, planned(spec), run_id=run_id)
    return {name: StagedAnswer(request=one.kept(), launch_script="#!/bin/sh\n") for name, one in requests.items()}


def left(*names: str) -> GangSpec:
    return without(INVENTORY, names).gangs[0]


@dataclass
class World:
    """Nodes with their knowledge, and a router."""

    known: dict[str, StagedAnswer]
    workers: list[str] = field(default_factory=list)
    serves: bool = True
    refuses: str = ""
    said: list[str] = field(default_factory=list)

    def on_every(self, _: Callable[..., Any], *, only: Collection[str]) -> PerNode[StagedAnswer]:
        return PerNode(values={name: self.known[name] for name in only if name in self.known}, failures={})

    def take_out(self, url: str) -> None:
        if self.refuses:
            raise NodeError(self.refuses, where="front", fix="look")
        self.workers.remove(url)

    def step(self, gang: str, words: str) -> None:
        self.said.append(words)

    def leave(self, names: Sequence[str], *, rising: Sequence[str] = ("gang0",), router: bool = True) -> str:
        """The address where the gang then serves."""
        inventory = without(replace(INVENTORY, router=ROUTER if router else None), names)
        plan, me = planned(inventory.gangs[0]), self
        leave(inventory, me, plan, names, me, rising=rising)  # type: ignore[arg-type]
        return plan.gangs[0].service_url


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(known=ran(SPEC, "20260101-000000-aaaa"))
    made.workers = [url(SPEC), "http://another:8000"]

    def workers() -> list[Worker]:
        return [Worker(id=url, url=url, healthy=True, load=0) for url in made.workers]

    router = SimpleNamespace(workers=workers, take_out=made.take_out)
    monkeypatch.setattr(up, "serving_router", lambda spec: nullcontext(router if spec and made.serves else None))
    return made


def url(spec: GangSpec) -> str:
    return planned(spec).gangs[0].service_url


def test_a_leader_that_leaves_leaves_the_router(world: World) -> None:
    now = world.leave(["node0"])
    assert now == url(left("node0")) != url(SPEC)
    assert world.workers == ["http://another:8000"]
    assert world.said == [
        f"removing {url(SPEC)} from the router",
        f"node1 leads it instead of node0; its address is now {now}",
    ]


def test_where_there_is_no_router_the_clients_are_to_be_told(world: World) -> None:
    world.leave(["node0"], router=False)
    assert len(world.workers) == 2
    assert "no router: tell your clients" in "".join(world.said)


def test_another_node_that_leaves_changes_no_address(world: World) -> None:
    assert world.leave(["node2"]) == url(SPEC)
    assert (len(world.workers), world.said) == (2, [])


def test_a_leader_that_is_back_takes_the_place_of_the_one_that_led_meanwhile(world: World) -> None:
    """node0 was away and still has the previous run; node3 dies, and node0 leads again."""
    world.known |= ran(left("node0"), "20260101-000001-aaaa")
    world.workers = [url(left("node0"))]
    now = world.leave(["node3"])
    assert now == url(SPEC) and world.workers == []
    assert f"node0 leads it instead of node1; its address is now {now}" in world.said


def test_the_same_without_anybody_who_leaves(world: World) -> None:
    """`up` after a gang on fewer nodes has failed, or was stopped."""
    world.known |= ran(left("node0"), "20260101-000001-aaaa")
    world.workers = [url(left("node0"))]
    world.leave([])
    assert world.workers == []


def test_a_gang_that_serves_is_taken_out_in_its_turn(world: World) -> None:
    world.known |= ran(left("node0"), "20260101-000001-aaaa")
    world.workers = [url(left("node0"))]
    world.leave([], rising=())
    assert len(world.workers) == 1
    assert any("node0 leads it instead of node1" in words for words in world.said)


def test_what_the_router_can_not_be_told_is_said(world: World) -> None:
    world.refuses = "the router does not remove it"
    world.leave(["node0"])
    assert any("front: the router does not remove it" in words for words in world.said)
    world.said, world.refuses, world.serves = [], "", False
    world.leave(["node0"])
    assert len(world.workers) == 2 and len(world.said) == 1


def test_a_gang_that_nobody_started_has_no_address_to_leave(world: World) -> None:
    world.known = {}
    world.leave(["node0"])
    assert (len(world.workers), world.said) == (2, [])
