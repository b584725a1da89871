"""The claim behind the router as a state machine: what a command needs, what it finds, what it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.gang.claims import (
    CLAIM_STEPS,
    ClaimStep,
    Found,
    TurnNeed,
    Way,
    changing,
    claim_step,
    need,
    taking_turns,
)
from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Reach, RouterSpec

TABLE = """
need        found  time left  no time
takes out   ours   go         go
takes out   busy   wait       late
takes out   held   wait       late
takes out   away   refuse     refuse
redirected  ours   go         go
redirected  busy   wait       late
redirected  held   wait       late
redirected  away   go         go
announces   ours   go         go
announces   busy   go         go
announces   held   go         go
announces   away   go         go
"""
ROWS = [line.rsplit(maxsplit=3) for line in TABLE.strip().splitlines()[1:]]


@pytest.mark.parametrize(("wanted", "found", "early", "late"), ROWS)
def test_what_a_command_does(wanted: str, found: str, early: str, late: str) -> None:
    for left_s, step in ((1.0, early), (0.0, late), (-1.0, late)):
        assert claim_step(TurnNeed(wanted.strip()), Found(found), left_s) is ClaimStep(step)


def test_the_table_is_whole() -> None:
    assert len(ROWS) == len(TurnNeed) * len(Found) == sum(map(len, CLAIM_STEPS.values()))


def view(name: str, state: GangState, *, healthy: bool = False) -> GangView:
    return GangView(name=name, state=state, service_healthy=healthy, service_url=f"http://{name}")


@pytest.mark.parametrize(
    ("way", "state", "healthy", "wanted"),
    [
        (Way.WAITS, GangState.READY, True, TurnNeed.TAKES_OUT),
        (Way.WAITS, GangState.DEGRADED, True, TurnNeed.TAKES_OUT),
        (Way.WAITS, GangState.DEGRADED, False, TurnNeed.ANNOUNCES),  # it hangs: this is its recovery
        (Way.WAITS, GangState.FAILED, False, TurnNeed.ANNOUNCES),
        (Way.WAITS, GangState.ABSENT, False, TurnNeed.ANNOUNCES),
        (Way.WAITS, GangState.STARTING, False, TurnNeed.ANNOUNCES),
        (Way.REDIRECTED, GangState.READY, True, TurnNeed.REDIRECTED),
        (Way.REDIRECTED, GangState.FAILED, False, TurnNeed.ANNOUNCES),
        (Way.AT_ONCE, GangState.READY, True, TurnNeed.ANNOUNCES),
    ],
)
def test_only_what_takes_something_from_clients_waits(
    way: Way, state: GangState, healthy: bool, wanted: TurnNeed
) -> None:
    others = view("other", GangState.READY, healthy=True)
    assert need(way, [view("mine", state, healthy=healthy), others], ["mine"]) is wanted


def test_a_gang_that_is_alone_in_its_inventory_waits_for_others_and_for_no_dead_router() -> None:
    wanted = need(Way.WAITS, [view("mine", GangState.READY, healthy=True)], ["mine"])
    assert claim_step(wanted, Found.HELD, 1.0) is ClaimStep.WAIT
    assert claim_step(wanted, Found.AWAY, 1.0) is ClaimStep.GO


@pytest.mark.parametrize("state", GangState)
def test_another_gang_on_its_way_up_or_down_is_waited_for(state: GangState) -> None:
    up, down = (GangState.ARMED, GangState.STARTING, GangState.WARMING), (GangState.DRAINING, GangState.STOPPING)
    assert bool(changing([view("other", state)], ["mine"])) is (state in (*up, *down))
    assert not changing([view("mine", state)], ["mine"])


@pytest.mark.parametrize(("gangs", "router", "claimed"), [(2, True, True), (1, True, True), (2, False, False)])
def test_only_a_gang_behind_nothing_claims_nothing(gangs: int, router: bool, claimed: bool) -> None:
    node = NodeSpec(name="n", gang="g", node_rank=0, reach=Reach(host="none"))
    specs = tuple(GangSpec(name=f"g{which}", nodes=(node,)) for which in range(gangs))
    front = RouterSpec(node=node) if router else None
    found = taking_turns(Inventory(path=str(Path("hosts.yml")), gangs=specs, router=front))
    assert found == (specs if claimed else ())
