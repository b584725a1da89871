"""What a guard decides, as a table; and its memory over a gang that keeps failing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from orchestrator.gang.guarding import (
    GuardAction,
    GuardDecision,
    GuardMemory,
    Policy,
    comes_back,
    decide,
    held_back,
    not_back_yet,
    noted,
    restarted,
    restarted_for,
    returned,
    returning,
    settling,
)
from orchestrator.gang.operations import GangOperation, OperationKind
from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.protocol.errors import Unreachable
from orchestrator.protocol.hang import Hang
from orchestrator.protocol.report import Cause

LOST = Unreachable("no answer", where="node1", fix="look")
CAUSE = Cause(node="node1", tp_rank=3, text="TP3 was killed")
POLICY = Policy(limit=3, first_pause_s=10, most_pause_s=25, stable_s=100)


def of_a_node(state: str) -> NodeState:
    """The nodes of a degraded gang are ready."""
    return NodeState.READY if state == "degraded" else NodeState(state)


def gang(
    state: str,
    *,
    lost: bool = False,
    trouble: str = "",
    alive: bool = True,
    cause: Cause | None = None,
    staged_s: float = 0.0,
) -> GangView:
    each = of_a_node(state)
    other = NodeState.UNREACHABLE if lost else each
    nodes = (
        NodeView(name="node0", node_rank=0, state=each, alive=alive, started_s=staged_s),
        NodeView(name="node1", node_rank=1, state=other, error=LOST if lost else None),
    )
    return GangView(name="gang0", state=GangState(state), trouble=trouble, cause=cause, nodes=nodes)


NEW = GuardMemory()
FAILED = gang("failed", cause=CAUSE)
TABLE: list[tuple[str, GangView, GuardMemory, str, str]] = [
    ("all is well", gang("ready"), NEW, "nothing", ""),
    ("an operator stopped it", gang("absent", alive=False), NEW, "nothing", ""),
    *(
        (f"somebody is at it: {state}", gang(state), NEW, "nothing", "")
        for state in ("staged", "armed", "starting", "warming", "draining", "stopping")
    ),
    *(
        (f"left {state}", gang(state, staged_s=61), NEW, "restart", "was not started within")
        for state in ("staged", "armed")
    ),
    ("it may be started yet", gang("armed", staged_s=59), NEW, "nothing", ""),
    ("a slow start is the view's to judge", gang("starting", staged_s=9e3), NEW, "nothing", ""),
    ("a rank died", FAILED, NEW, "restart", "node1: TP3 was killed"),
    (
        "an operator stopped it, and a node could not be told",
        replace(FAILED, ordered=("node0",), remarks=("an operator has stopped it",)),
        NEW,
        "warn",
        "an operator has stopped it",
    ),
    ("failed, nobody knows why", gang("failed"), NEW, "restart", "without a known cause"),
    ("the engine hangs", gang("degraded", trouble="hung"), NEW, "restart", "hung"),
    ("busy is not hung", gang("degraded", trouble="slow"), NEW, "warn", "slow"),
    ("its lease decides, not we", gang("degraded", trouble="silent"), NEW, "warn", "silent"),
    ("SSH lost, it serves", gang("ready", lost=True), NEW, "warn", "node1 can't be reached; it is ready"),
    ("SSH lost, degraded", gang("degraded", lost=True), NEW, "warn", "node1 can't be reached; it is degraded"),
    ("not all nodes are back", gang("failed", lost=True, cause=CAUSE), NEW, "wait", "waiting for node1"),
    ("back-off", FAILED, GuardMemory(restarts=1, not_before=60), "wait", "in 10 s"),
    ("it is time", FAILED, GuardMemory(restarts=2, not_before=50), "restart", "TP3"),
    ("limit", FAILED, GuardMemory(restarts=3), "give-up", "3 restarts in a row"),
    ("told once", FAILED, GuardMemory(restarts=3, given_up=True), "nothing", "given up"),
]


@pytest.mark.parametrize(("about", "view", "memory", "do", "words"), TABLE)
def test_decide(about: str, view: GangView, memory: GuardMemory, do: str, words: str) -> None:
    decision, _ = decide(view, memory, 50.0, POLICY)
    assert decision.do.value == do and words in decision.why, about


RESTARTING = GangOperation(gang="gang0", what=OperationKind.RESTART, turning=True)


@pytest.mark.parametrize(
    ("about", "ordered", "begun", "do"),
    [
        ("killed half way", (), RESTARTING, "restart"),
        ("its turn was still to come", (), replace(RESTARTING, turning=False), "nothing"),
        ("its operator works on the nodes", (), replace(RESTARTING, by_hand=True), "nothing"),
        ("stopped by a person since, as one node knows", ("node1",), RESTARTING, "nothing"),
    ],
)
def test_an_interrupted_restart_is_finished_unless_a_person_has_stopped_the_gang_since(
    about: str, ordered: tuple[str, ...], begun: GangOperation, do: str
) -> None:
    stopped = replace(gang("absent", alive=False), ordered=ordered)
    decision, _ = decide(stopped, NEW, 50.0, POLICY, begun)
    assert decision.do.value == do, about


def test_pauses_double_up_to_a_bound() -> None:
    memory, pauses = GuardMemory(), []
    for _ in range(4):
        memory = restarted(memory, 100.0, POLICY)
        pauses.append(memory.not_before - 100.0)
    assert pauses == [10, 20, 25, 25]


def test_a_stable_gang_has_forgotten_its_restarts_and_a_shaky_one_has_not() -> None:
    memory = restarted(GuardMemory(), 0.0, POLICY)
    _, memory = decide(gang("ready"), memory, 10.0, POLICY)
    _, memory = decide(gang("ready"), memory, 109.0, POLICY)
    assert memory.restarts == 1
    _, shaky = decide(gang("failed", cause=CAUSE), memory, 109.5, POLICY)
    assert (shaky.restarts, shaky.ready_since) == (1, None)
    _, memory = decide(gang("ready"), memory, 110.0, POLICY)
    assert memory.restarts == 0


def test_what_was_given_up_is_guarded_again_once_somebody_has_fixed_it() -> None:
    _, memory = decide(gang("ready"), GuardMemory(restarts=3, given_up=True), 10.0, POLICY)
    assert not memory.given_up


LOOK_S = 2.0
FIREWALL = "node2: TCP port 7700 is dropped"


@dataclass
class Guarded:
    """A guard in virtual time over a gang that failed at 0. closed: when a start is forbidden, in seconds.
    helps: the first restart after which a gang stays up."""

    closed: tuple[tuple[float, float], ...]
    helps: int = 1
    memory: GuardMemory = field(default_factory=GuardMemory)
    state: str = "failed"
    looked: list[float] = field(default_factory=list)
    restarts: list[float] = field(default_factory=list)
    told: list[float] = field(default_factory=list)
    last: GuardDecision | None = None

    def until(self, end: float) -> Guarded:
        now = 0.0
        while now < end:
            self.last, self.memory = decide(gang(self.state, cause=CAUSE), self.memory, now, POLICY)
            if self.last.do is GuardAction.RESTART:
                self._attempt(now)
            now += LOOK_S
        return self

    def _attempt(self, now: float) -> None:
        self.looked.append(now)
        if any(begin <= now < end for begin, end in self.closed):
            self.memory = held_back(self.memory, now, POLICY, FIREWALL)
            if self.memory.held_back == POLICY.tell_at:
                self.told.append(now)
            return
        self.memory = restarted(self.memory, now, POLICY)
        self.restarts.append(now)
        self.state = "ready" if len(self.restarts) >= self.helps else "failed"


@pytest.mark.parametrize(
    ("closed", "helps", "restarts", "told"),
    [
        pytest.param((), 1, [0], [], id="nothing forbids it"),
        pytest.param(((0, 8),), 1, [10], [], id="a port dropped for 8 s"),
        pytest.param(((0, 15),), 1, [30], [], id="a port dropped for 15 s"),
        pytest.param(((0, 100),), 1, [150], [30], id="a switch that boots"),
        pytest.param(((0, 4 * 3600),), 1, [14430], [30], id="a card that is replaced after four hours"),
        pytest.param(((0, 5), (11, 35)), 2, [10, 50], [], id="it comes and goes, between restarts too"),
    ],
)
def test_what_forbids_a_restart_for_a_while_ends_no_guard(
    closed: tuple[tuple[float, float], ...], helps: int, restarts: list[float], told: list[float]
) -> None:
    guarded = Guarded(closed, helps).until(5 * 3600)
    assert (guarded.restarts, guarded.told) == (restarts, told)
    assert guarded.state == "ready"
    assert guarded.memory == GuardMemory(ready_since=guarded.memory.ready_since)


def test_it_never_gives_up_on_a_finding_and_looks_ever_less_often_up_to_a_bound() -> None:
    guarded = Guarded(closed=((0, 1e9),)).until(86400)
    pauses = [late - early for early, late in pairwise(guarded.looked)]
    assert pauses[:4] == [10, 20, 40, 80] and set(pauses[4:]) == {120}
    assert guarded.memory.restarts == 0 and not guarded.memory.given_up and guarded.told == [30]
    assert guarded.last is not None and guarded.last.do is GuardAction.WAIT
    assert FIREWALL in guarded.last.why and "checking again in" in guarded.last.why
    assert FIREWALL in guarded.last.reason and guarded.last.counting.startswith("checking again in")


def test_an_operator_who_stops_it_ends_the_waiting() -> None:
    guarded = Guarded(closed=((0, 1e9),)).until(50)
    stopped, _ = decide(gang("absent", alive=False), guarded.memory, 3600.0, POLICY)
    assert stopped.do is GuardAction.NOTHING


FOUR = ("node0", "node1", "node2", "node3")
GOES_ON = Policy(limit=3, first_pause_s=10, degrade_after_s=60)


def four(state: str, *, lost: tuple[str, ...] = (), missing: tuple[str, ...] = (), trouble: str = "") -> GangView:
    """A gang of four nodes. missing: started without; lost: does not answer."""
    nodes = tuple(
        NodeView(name=name, node_rank=rank, state=of_a_node(state), alive=True, error=LOST if name in lost else None)
        for rank, name in enumerate(FOUR)
    )
    return GangView(name="gang0", state=GangState(state), trouble=trouble, cause=CAUSE, nodes=nodes, missing=missing)


def with_a_spare(seen: GangView, *, lost: bool = False) -> GangView:
    spare = NodeView(name="spare0", node_rank=-1, state=NodeState("spare"), error=LOST if lost else None, spare=True)
    return replace(seen, spares=(spare,))


def with_stand_in(seen: GangView, **more: Any) -> GangView:
    """A spare has a node's place."""
    spare = NodeView(name="spare0", node_rank=2, state=NodeState(seen.state.value), alive=True, spare=True, **more)
    return replace(seen, nodes=(*seen.nodes, spare))


def decisions(view: GangView, memory: GuardMemory, *moments: float, policy: Policy = GOES_ON) -> list[GuardDecision]:
    made = []
    for now in moments:
        decision, memory = decide(view, memory, now, policy)
        made.append(decision)
    return made


def test_a_node_that_stays_away_is_left_out_after_its_time() -> None:
    first, before, then = decisions(four("failed", lost=("node2",)), GuardMemory(), 100, 159, 160)
    assert first.do is before.do is GuardAction.WAIT
    assert "waiting for node2 to come back; continuing without it in 60 s" in first.why
    assert first.reason == before.reason and first.why != before.why, "a countdown is no news"
    assert (then.do, then.without) == (GuardAction.DEGRADE, ("node2",))
    (never,) = decisions(four("failed", lost=("node2",)), GuardMemory(away_since=0.0), 9e9, policy=POLICY)
    assert never.do is GuardAction.WAIT, "unless asked for, it waits"


def test_a_lost_node_is_away_since_it_was_lost_and_not_since_a_restart_is_due() -> None:
    """Its gang fails by the lease, and a restart that is under way takes its time to see that it can't succeed."""
    lost = ("node2",)
    serving, failed = four("degraded", lost=lost, trouble="unreachable"), four("failed", lost=lost)
    told, last = decisions(serving, GuardMemory(), 100), decide(serving, GuardMemory(), 100, GOES_ON)[1]
    assert told[0].do is GuardAction.WARN
    assert [one.do.value for one in decisions(failed, last, 130, 159, 160)] == ["wait", "wait", "degrade"]
    during = noted(restarted(GuardMemory(), 90, GOES_ON), failed, 100)
    assert [one.do for one in decisions(failed, during, 140, 160)] == [GuardAction.WAIT, GuardAction.DEGRADE]
    back = noted(noted(during, four("starting"), 110), failed, 120)
    assert [one.do for one in decisions(failed, back, 160, 180)] == [GuardAction.WAIT, GuardAction.DEGRADE]
    (long_away,) = decisions(failed, noted(GuardMemory(), replace(failed, nodes=failed.nodes[2:3]), 0), 60)
    assert long_away.do is GuardAction.DEGRADE


def test_a_node_that_came_back_meanwhile_is_counted_anew() -> None:
    _, memory = decide(four("failed", lost=("node2",)), GuardMemory(), 100, GOES_ON)
    decision, memory = decide(four("failed"), memory, 150, GOES_ON)
    assert decision.do is GuardAction.RESTART
    assert decide(four("failed", lost=("node2",)), memory, 165, GOES_ON)[0].do is GuardAction.WAIT


def test_a_node_with_a_finding_of_severity_stop_counts_as_away() -> None:
    memory = held_back(GuardMemory(), 0, GOES_ON, "GPU-MISSING", ("node1",))
    first, then = decisions(four("failed"), memory, 1, 61)
    assert first.do is GuardAction.WAIT
    assert (then.do, then.without) == (GuardAction.DEGRADE, ("node1",))


def test_what_nobody_is_to_be_left_out_for_is_looked_at_again_after_a_pause() -> None:
    seen, memory = four("failed", lost=("node0",)), GuardMemory(away_since=0.0)
    refused = held_back(memory, 60, GOES_ON, "RAIL-SUBNETS", (), on_fewer=True)
    assert [one.do.value for one in decisions(seen, refused, 61, 69, 70)] == ["wait", "wait", "degrade"]


def test_a_node_that_was_refused_beside_a_lost_one_is_asked_for_again() -> None:
    """Nothing fits the two that are left; healed, the refused one makes three."""
    seen = four("failed", lost=("node0",))
    refused = held_back(GuardMemory(away_since=0.0), 60, GOES_ON, "GPU-MISSING", ("node1",), on_fewer=True)
    hopeless = replace(refused, hopeless=("node0", "node1"))
    before, then = decisions(seen, hopeless, 69, 70)
    assert before.do is GuardAction.WAIT
    assert (then.do, then.without) == (GuardAction.DEGRADE, ("node0",))


AWAY, ONE = GuardMemory(away_since=0.0), ("node2",)


def refused(memory: GuardMemory, *names: str) -> GuardMemory:
    """The doctor forbade a start without the nodes that are away, because of these."""
    return held_back(memory, 60, GOES_ON, "GPU-MISSING", names, on_fewer=True)


BOTH_LOST, FIRST_LOST = four("failed", lost=("node0", "node2"), missing=ONE), four("failed", lost=("node0",))
FIRST_LOST_BACK, WAITS = four("failed", lost=("node0",), missing=ONE), with_a_spare(four("failed", lost=ONE))
LEFT_OUT: list[tuple[str, GangView, GuardMemory, tuple[str, ...]]] = [
    ("a gang that goes on loses another one", BOTH_LOST, AWAY, ("node0", "node2")),
    ("a node that is back takes part", FIRST_LOST_BACK, AWAY, ("node0",)),
    ("unless the doctor has something against it", FIRST_LOST_BACK, refused(AWAY, "node2"), ("node0", "node2")),
    ("that two can't run says nothing of three", FIRST_LOST_BACK, replace(AWAY, hopeless=("node0", "node2")),
     ("node0",)),
    ("so does a spare whose place is free again", with_stand_in(FIRST_LOST_BACK), AWAY, ("node0",)),
    ("a stand-in dies, all of its own nodes are there", with_stand_in(four("failed", missing=ONE), error=LOST), AWAY,
     ("spare0",)),
    ("the spare did nothing", with_a_spare(FIRST_LOST), refused(AWAY, "node1"), ("node0", "node1")),
    ("the doctor refuses the spare", with_a_spare(FIRST_LOST), refused(AWAY, "spare0"), ("node0", "spare0")),
    ("a spare takes the place", WAITS, AWAY, ONE),
    ("a spare that is lost", with_a_spare(four("failed", lost=ONE), lost=True), AWAY, ("node2", "spare0")),
    ("a spare that failed", WAITS, replace(AWAY, unfit=("spare0",)), ("node2", "spare0")),
    ("a spare alone is enough", with_a_spare(four("failed", lost=FOUR)), AWAY, FOUR),
    ("others are away than those that no layout fits", four("failed", lost=("node1", "node2")),
     replace(AWAY, hopeless=ONE), ("node1", "node2")),
]  # fmt: skip


@pytest.mark.parametrize(("about", "view", "memory", "without"), LEFT_OUT)
def test_who_is_left_out(about: str, view: GangView, memory: GuardMemory, without: tuple[str, ...]) -> None:
    (decision,) = decisions(view, memory, 60)
    assert (decision.do, decision.without) == (GuardAction.DEGRADE, without), about
    assert refused(memory, "node1").restarts == memory.restarts, "a refusal counts none"


GOING_ON: list[tuple[str, GangView, GuardMemory, str]] = [
    ("nobody is left", four("failed", lost=FOUR), AWAY, "wait"),
    ("no layout fits", four("failed", lost=ONE), replace(AWAY, hopeless=ONE), "wait"),
    ("no layout fits, a spare or not", WAITS, replace(AWAY, hopeless=ONE), "wait"),
    ("it has just failed", four("failed", lost=ONE), replace(AWAY, not_before=99), "wait"),
    ("too often", four("failed", lost=ONE), replace(AWAY, restarts=3), "give-up"),
    ("a rank died on three nodes", four("failed", missing=ONE), NEW, "restart"),
    ("nobody waits for it any more", four("failed", lost=ONE, missing=ONE), NEW, "restart"),
    ("still away", four("degraded", lost=ONE, missing=ONE, trouble="nodes"), NEW, "warn"),
    ("it is back", four("degraded", missing=ONE, trouble="nodes"), NEW, "return"),
    ("not looked yet", four("degraded", missing=ONE, trouble="nodes"), GuardMemory(return_at=99), "warn"),
    ("worse first", four("degraded", missing=ONE, trouble="hung"), NEW, "restart"),
    ("its node is back", with_stand_in(four("ready", missing=ONE)), NEW, "return"),
    ("its node is away", with_stand_in(four("ready", lost=ONE, missing=ONE)), NEW, "nothing"),
]


@pytest.mark.parametrize(("about", "view", "memory", "do"), GOING_ON)
def test_going_on_and_returning(about: str, view: GangView, memory: GuardMemory, do: str) -> None:
    assert decisions(view, memory, 70)[0].do.value == do, about


def test_looks_at_whether_it_can_return_become_rarer() -> None:
    memory, moments = GuardMemory(), []
    for _ in range(6):
        memory = not_back_yet(memory, 0, GOES_ON)
        moments.append(memory.return_at)
    assert moments == [10, 20, 40, 80, 120, 120]


def test_serving_on_fewer_nodes_for_long_forgets_the_restarts() -> None:
    fewer = four("degraded", lost=("node2",), missing=("node2",), trouble="nodes")
    memory = GuardMemory(restarts=2)
    for now in (0, GOES_ON.stable_s):
        _, memory = decide(fewer, memory, now, GOES_ON)
    assert memory.restarts == 0


NO_RAIL = "node2: none of its RDMA ports can be used"


def test_a_plan_that_a_node_can_not_carry_out_any_more_is_replaced_once_that_has_lasted() -> None:
    """Links train after a boot, so the same plan is first retried for a while."""
    seen, memory, made = four("failed"), GuardMemory(), []
    for now in range(0, 200, 2):
        decision, memory = decide(seen, memory, now, POLICY)
        if decision.do in (GuardAction.RESTART, GuardAction.REPLAN):
            made.append((now, decision.do))
            memory = held_back(memory, now, POLICY, NO_RAIL, outdated=True)
    assert made == [(now, GuardAction.RESTART) for now in (0, 10, 30, 70)] + [(150, GuardAction.REPLAN)]
    assert memory.restarts == 0
    (last,) = decisions(seen, replace(memory, not_before=0), 200)
    assert (last.do, last.without) == (GuardAction.REPLAN, ()) and NO_RAIL in last.why


OLD = GuardMemory(outdated_since=0)
PLANNED_ANEW: list[tuple[str, GangView, GuardMemory, str]] = [
    ("not for long", four("failed"), GuardMemory(outdated_since=11), "restart"),
    ("as long as a node is waited for", four("failed"), GuardMemory(outdated_since=10), "replan"),
    ("on three", four("failed", missing=ONE), OLD, "replan"),
    ("a lost node first", four("failed", lost=("node0",)), OLD, "wait"),
    ("the port is back", four("failed"), NEW, "restart"),
    ("restarted since", four("failed"), restarted(OLD, -90, POLICY), "restart"),
    ("another finding now", four("failed"), replace(held_back(OLD, 0, POLICY, FIREWALL), not_before=0), "restart"),
    ("it runs by the new plan", four("ready"), GuardMemory(replanned="p"), "return"),
    ("somebody has started it by another", four("ready"), GuardMemory(replanned="older"), "nothing"),
]


@pytest.mark.parametrize(("about", "view", "memory", "do"), PLANNED_ANEW)
def test_planning_anew(about: str, view: GangView, memory: GuardMemory, do: str) -> None:
    assert decisions(replace(view, plan_id="p"), memory, 70)[0].do.value == do, about


def test_a_gang_that_is_back_on_its_rails_has_forgotten_that_it_was_planned_anew() -> None:
    assert not returned(GuardMemory(replanned="p")).replanned
    seen, memory = replace(four("ready"), plan_id="p"), GuardMemory(returned=2, replanned="p")
    for now in (0, POLICY.stable_s):
        _, memory = decide(seen, memory, now, POLICY)
    assert (memory.replanned, memory.returned) == ("p", 2), "it is not as it was, however long it serves"


@dataclass
class Flapping:
    """A guard in virtual time over a gang of four, one node of which is back for up_s seconds after each return, and
    away for down_s seconds after that."""

    up_s: float
    down_s: float
    policy: Policy
    memory: GuardMemory = field(default_factory=GuardMemory)
    returns: list[float] = field(default_factory=list)
    degrades: int = 0
    asks: int = 0

    def until(self, end: float) -> Flapping:
        now, on_all, since = 0.0, True, 0.0
        while now < end:
            away = now - since >= self.up_s if on_all else now - since < self.down_s
            lost = ("node2",) if away else ()
            if on_all:
                seen = four("failed" if away else "ready", lost=lost)
            else:
                seen = four("degraded", lost=lost, missing=("node2",), trouble="nodes")
            decision, self.memory = decide(seen, self.memory, now, self.policy)
            if decision.do is GuardAction.DEGRADE:
                self.memory = restarted(self.memory, now, self.policy)
                on_all, since, self.degrades = False, now, self.degrades + 1
            elif decision.do is GuardAction.RETURN and self.memory.returned < self.policy.return_limit:
                self.memory = returned(returning(self.memory, now, self.policy))
                on_all, since = True, now
                self.returns.append(now)
            elif decision.do is GuardAction.RETURN:
                self.memory = not_back_yet(self.memory, now, self.policy)
                self.asks += 1
            now += LOOK_S
        return self


FLAPS = Policy(first_pause_s=10, degrade_after_s=60, stable_s=900, return_limit=3)


@pytest.mark.parametrize(
    ("up_s", "down_s", "limit", "returns", "pauses"),
    [
        pytest.param(30, 30, 3, 3, [120, 120], id="it dies again at once: three returns, then a human"),
        pytest.param(30, 30, 6, 6, [120, 120, 240, 480, 960], id="the wait before each doubles"),
        pytest.param(1000, 200, 3, 6, [], id="it lasts longer than --stable each time: counted anew"),
        pytest.param(30, 30, 1, 1, [], id="once"),
    ],
)
def test_a_node_that_comes_and_goes_does_not_restart_the_gang_for_ever(
    up_s: float, down_s: float, limit: int, returns: int, pauses: list[float]
) -> None:
    seen = Flapping(up_s, down_s, replace(FLAPS, return_limit=limit)).until(8 * 3600)
    if pauses:
        assert (len(seen.returns), [late - early for early, late in pairwise(seen.returns)]) == (returns, pauses)
        assert seen.degrades == returns + 1 and seen.asks
    else:
        assert len(seen.returns) >= returns and (seen.asks > 0) is (up_s < FLAPS.stable_s)


def test_a_return_waits_until_the_ports_of_two_looks_are_the_same() -> None:
    memory, first, all_of_them = GuardMemory(), ("node2 mlx5_0:1",), ("node2 mlx5_0:1", "node2 mlx5_1:1")
    assert memory.ports != first
    memory = settling(memory, 5, FLAPS, first)
    assert memory.return_at == 5 + FLAPS.first_pause_s
    assert memory.ports != all_of_them
    assert settling(memory, 15, FLAPS, all_of_them).ports == all_of_them
    assert settling(memory, 15, FLAPS, ()).ports == (), "a cluster without RDMA"


def test_the_wait_before_a_return_has_a_bound() -> None:
    memory = GuardMemory(returned=40)
    assert returning(memory, 0, FLAPS).return_at == FLAPS.most_return_pause_s


def hung(name: str, *, moves: bool = False, gathering: bool = False) -> GangView:
    cause = replace(CAUSE, text="it stands", hang=Hang(name=name, moves=moves))
    return replace(gang("degraded", trouble="hung", cause=cause), gathering=gathering)


@pytest.mark.parametrize(
    ("view", "action", "words"),
    [
        (hung("HANG-RANK-BEHIND"), "restart", "it stands"),
        (hung("HANG-UNKNOWN"), "restart", "it stands"),
        (hung("HANG-COMPILE", moves=True), "warn", "it is not restarted while that goes on: it stands"),
        (hung("HANG-FABRIC", moves=True), "warn", "it is not restarted while that goes on"),
        (hung("HANG-FABRIC"), "restart", "it stands"),
        (replace(hung("HANG-RANK-BEHIND"), gathering=True), "wait", "its ranks are looked at first"),
        (replace(FAILED, gathering=True), "restart", "TP3 was killed"),
    ],
)
def test_what_goes_on_is_not_restarted_and_what_is_looked_at_not_yet(view: GangView, action: str, words: str) -> None:
    decision, _ = decide(view, NEW, 0.0, POLICY)
    assert decision.do.value == action
    assert words in decision.why


def test_a_second_restart_for_one_class_within_a_day_is_an_alarm_and_is_remembered_over_a_stable_time() -> None:
    memory = restarted_for(NEW, hung("HANG-DIVERGED"), 0.0)
    assert comes_back(memory) == ""
    _, memory = decide(gang("ready"), replace(memory, ready_since=0.0), 200.0, POLICY)
    memory = restarted_for(returned(memory), hung("HANG-RANK-BEHIND"), 1000.0)
    assert comes_back(memory) == ""
    memory = restarted_for(memory, hung("HANG-DIVERGED"), 2000.0)
    assert comes_back(memory) == "2 restarts within a day for HANG-DIVERGED: restarting does not mend it"
    assert comes_back(restarted_for(memory, hung("HANG-DIVERGED"), 2000.0 + 86400)) == ""
    assert restarted_for(memory, FAILED, 3000.0) == memory
