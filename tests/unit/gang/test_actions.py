"""The next steps as a table over goal and view."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.gang.actions import (
    CONNECT_S,
    MOST_STOPS,
    PAST_LEASE_S,
    ChangeSchedule,
    Goal,
    StepKind,
    change_schedule,
    next_step,
    on_its_way,
)
from orchestrator.gang.serving import Serving, names_of
from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.protocol.errors import Unreachable
from orchestrator.protocol.hang import Hang
from orchestrator.protocol.report import Cause

LOST = Unreachable("no route", where="b", fix="look")


def node(name: str, state: str) -> NodeView:
    return NodeView(
        name=name,
        node_rank="ab".index(name),
        state=NodeState(state),
        alive=state in ("armed", "starting", "warming", "ready", "draining", "stopping"),
        error=LOST if state == "unreachable" else None,
    )


def seen(state: str, a: str, b: str, *, run: str = "r1", plan: str = "p1", alive: str = "", **more: Any) -> GangView:
    nodes = tuple(replace(one, alive=one.alive or one.name in alive) for one in (node("a", a), node("b", b)))
    return GangView(name="g", state=GangState(state), run_id=run, plan_id=plan, nodes=nodes, **more)


def degraded(trouble: str, *, serves: bool, plan: str = "p1") -> GangView:
    return seen("degraded", "ready", "ready", plan=plan, trouble=trouble, service_healthy=serves)


FRESH = Goal(plan_id="p1")
OURS = Goal(plan_id="p1", run_id="r1")
TOLD = replace(OURS, stops=1)
STUBBORN = replace(FRESH, stops=MOST_STOPS)

TABLE: list[tuple[str, Goal, GangView, StepKind, str]] = [
    ("nothing there", FRESH, seen("absent", "absent", "absent"), StepKind.STAGE, "ab"),
    ("an old failure", FRESH, seen("failed", "failed", "failed"), StepKind.STAGE, "ab"),
    ("an old run was stopped", FRESH, seen("absent", "stopped", "stopped"), StepKind.STAGE, "ab"),
    ("staged long ago", FRESH, seen("staged", "staged", "staged"), StepKind.STAGE, "ab"),
    ("a node rebooted", FRESH, seen("failed", "failed", "dead"), StepKind.STOP_NOW, "b"),
    ("armed by a killed up", FRESH, seen("armed", "armed", "armed"), StepKind.STOP_NOW, "ab"),
    ("half armed by a killed up", FRESH, seen("staged", "armed", "staged"), StepKind.STOP_NOW, "a"),
    ("starting by a killed up", FRESH, seen("starting", "starting", "starting"), StepKind.WAIT, ""),
    ("same plan is ready", FRESH, seen("ready", "ready", "ready"), StepKind.DONE, ""),
    ("same plan serves, degraded", FRESH, degraded("stopped", serves=True), StepKind.DONE, ""),
    ("same plan is slow", FRESH, degraded("slow", serves=False), StepKind.WAIT, ""),
    ("same plan hangs", FRESH, degraded("hung", serves=True), StepKind.WAIT, ""),
    ("another plan is degraded", FRESH, degraded("stopped", serves=True, plan="p0"), StepKind.REFUSE, ""),
    ("another plan is ready", FRESH, seen("ready", "ready", "ready", plan="p0"), StepKind.REFUSE, ""),
    ("another plan is starting", FRESH, seen("starting", "starting", "starting", plan="p0"), StepKind.REFUSE, ""),
    ("another plan is failing", FRESH, seen("failed", "failed", "ready", plan="p0"), StepKind.STOP_NOW, "b"),
    ("it is stopping", FRESH, seen("draining", "draining", "draining"), StepKind.WAIT, ""),
    ("ours: staged", OURS, seen("staged", "staged", "staged"), StepKind.ARM, "ab"),
    ("ours: half armed", OURS, seen("staged", "armed", "staged"), StepKind.ARM, "b"),
    ("ours: armed", OURS, seen("armed", "armed", "armed"), StepKind.GO, "ab"),
    ("ours: half gone", OURS, seen("armed", "starting", "armed"), StepKind.GO, "b"),
    ("ours: starting", OURS, seen("starting", "starting", "starting"), StepKind.WAIT, ""),
    ("ours: warming", OURS, seen("warming", "warming", "warming"), StepKind.WAIT, ""),
    ("ours: ready", OURS, seen("ready", "ready", "ready"), StepKind.DONE, ""),
    ("ours: degraded", OURS, seen("degraded", "ready", "unreachable"), StepKind.WAIT, ""),
    (
        "ours: failing, and a node is lost",
        OURS,
        seen("failed", "failed", "unreachable", alive="a"),
        StepKind.STOP_NOW,
        "a",
    ),
    ("ours: failed, and a node is lost", OURS, seen("failed", "failed", "unreachable"), StepKind.FAIL, ""),
    ("ours: failed, and one was told to end", TOLD, seen("failed", "failed", "ready"), StepKind.FAIL, ""),
    ("ours: stopped, and a node is lost", OURS, seen("absent", "stopped", "unreachable"), StepKind.FAIL, ""),
    ("ours: nobody answers", OURS, seen("degraded", "unreachable", "unreachable", run="", plan=""), StepKind.WAIT, ""),
    ("a node is lost at first", FRESH, seen("absent", "absent", "unreachable"), StepKind.WAIT, ""),
    ("an old failure, a node is lost", FRESH, seen("failed", "failed", "unreachable"), StepKind.WAIT, ""),
    ("left over, a node is lost", FRESH, seen("armed", "armed", "unreachable"), StepKind.WAIT, ""),
    ("failing, a node is lost", FRESH, seen("failed", "ready", "unreachable"), StepKind.WAIT, ""),
    ("another plan, a node is lost", FRESH, seen("degraded", "ready", "unreachable", plan="p0"), StepKind.REFUSE, ""),
    ("what is left does not end", STUBBORN, seen("armed", "armed", "armed"), StepKind.FAIL, ""),
    ("ours: failing", OURS, seen("failed", "failed", "ready"), StepKind.STOP_NOW, "b"),
    ("ours: failed", OURS, seen("failed", "failed", "failed"), StepKind.FAIL, ""),
    ("ours: a node died", OURS, seen("failed", "failed", "dead"), StepKind.STOP_NOW, "b"),
    ("ours: somebody stops it", OURS, seen("draining", "draining", "draining"), StepKind.WAIT, ""),
    ("ours: it was stopped", OURS, seen("absent", "stopped", "stopped"), StepKind.FAIL, ""),
    ("ours: armed, and a node is lost", OURS, seen("armed", "armed", "unreachable"), StepKind.WAIT, ""),
]


@pytest.mark.parametrize(("goal", "view", "do", "nodes"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_next_step(goal: Goal, view: GangView, do: StepKind, nodes: str) -> None:
    action = next_step(goal, view)
    assert (action.do, action.nodes) == (do, tuple(nodes))


LATE_S = OURS.lease_s + PAST_LEASE_S
NOBODY = seen("degraded", "unreachable", "unreachable", run="", plan="")
LEADER_LOST = seen("degraded", "unreachable", "ready", trouble="unreachable")


@pytest.mark.parametrize(
    ("goal", "view", "limit_s", "do"),
    [
        (FRESH, seen("absent", "absent", "unreachable"), CONNECT_S, StepKind.LOST),
        (FRESH, seen("failed", "failed", "unreachable"), CONNECT_S, StepKind.LOST),
        (FRESH, seen("armed", "armed", "unreachable"), CONNECT_S, StepKind.LOST),
        (FRESH, seen("failed", "ready", "unreachable", plan="p0"), CONNECT_S, StepKind.LOST),
        (FRESH, NOBODY, CONNECT_S, StepKind.LOST),
        (OURS, NOBODY, LATE_S, StepKind.LOST),
        (OURS, seen("staged", "staged", "unreachable"), LATE_S, StepKind.LOST),
        (OURS, seen("armed", "armed", "unreachable"), LATE_S, StepKind.LOST),
        (OURS, replace(degraded("unreachable", serves=True), nodes=LEADER_LOST.nodes[::-1]), LATE_S, StepKind.DONE),
        (OURS, LEADER_LOST, LATE_S, StepKind.DONE),
        (OURS, seen("degraded", "silent", "ready", trouble="silent", service_healthy=False), LATE_S, StepKind.DONE),
        (OURS, degraded("stopped", serves=True), LATE_S, StepKind.DONE),
        (FRESH, degraded("hung", serves=False), LATE_S, StepKind.FAIL),
        (OURS, degraded("hung", serves=True), LATE_S, StepKind.FAIL),
    ],
)
def test_what_is_not_told_or_not_well_is_waited_for_so_long(
    goal: Goal, view: GangView, limit_s: float, do: StepKind
) -> None:
    """A node's own time counts: that of a connection before anything of ours is staged there, its lease after that."""
    assert [next_step(goal, view, wait_s).do for wait_s in (limit_s - 0.1, limit_s)] == [StepKind.WAIT, do]


COMPILES = Cause(node="a", text="it compiles", hang=Hang(name="HANG-COMPILE", moves=True))


@pytest.mark.parametrize("still", [{"gathering": True}, {"cause": COMPILES}])
def test_a_hang_that_is_looked_at_or_goes_on_by_itself_is_waited_for(still: dict[str, Any]) -> None:
    hangs = replace(degraded("hung", serves=False), **still)
    assert next_step(FRESH, hangs, 10 * LATE_S).do is StepKind.WAIT


NOTHING = (GangState.ABSENT, GangState.UNKNOWN)
"""No agent of such a gang is known to live."""


@pytest.mark.parametrize("goal", [FRESH, OURS, TOLD, STUBBORN])
def test_nothing_is_staged_or_ended_beside_a_node_that_may_run_anything_and_no_wait_has_no_end(goal: Goal) -> None:
    """What is waited for without a limit here ends by itself: a start has its phases' limits, an end its deadline."""
    for state in GangState:
        for a in (word.value for word in NodeState if word is not NodeState.UNREACHABLE):
            view = seen(state.value, a, "unreachable", plan="p0")
            for action in () if view.running and state in NOTHING else [next_step(goal, view, 1e9)]:
                assert action.do not in (StepKind.STAGE, StepKind.GO)
                assert goal.run_id or action.do is not StepKind.STOP_NOW
                if action.do is StepKind.WAIT:
                    assert state.loads or state.value in ("draining", "stopping", "degraded")


def test_what_takes_too_long_is_given_up_once_it_is_ours_or_of_our_plan() -> None:
    late = replace(seen("starting", "starting", "starting"), late=Cause(node="b", text="at weights for 9999 s"))
    for goal in (FRESH, OURS):
        action = next_step(goal, late)
        assert (action.do, action.why) == (StepKind.GIVE_UP, "b: at weights for 9999 s")


@pytest.mark.parametrize("goal", [FRESH, OURS])
def test_every_state_has_a_next_step(goal: Goal) -> None:
    words: list[Any] = ["absent", "staged", "armed", "starting", "ready", "draining", "failed", "dead", "unreachable"]
    for state in GangState:
        for a in words:
            for b in words:
                assert next_step(goal, seen(state.value, a, b))


@pytest.mark.parametrize("state", list(GangState))
def test_only_what_has_not_served_yet_is_on_its_way(state: GangState) -> None:
    rising = state.value in ("staged", "armed", "starting", "warming")
    assert on_its_way(FRESH, seen(state.value, "ready", "ready")) is rising
    assert not on_its_way(FRESH, seen(state.value, "ready", "ready", plan="p0"))


def course_of(same: str, elsewhere: int, **states: str) -> ChangeSchedule:
    """same: the gangs that run what the plan wants."""
    views = [
        GangView(name=name, state=GangState(state), model="m", service_healthy=state == "ready")
        for name, state in states.items()
    ]
    return change_schedule(
        views, tuple(same), serving=serving_now(views, ["m"] * elsewhere), planned=dict.fromkeys(states, ("m",))
    )


def serving_now(views: Sequence[GangView], elsewhere: Iterable[str]) -> Serving:
    others = {f"other {place}": (name,) for place, name in enumerate(elsewhere)}
    return {view.name: names_of(view) for view in views if view.serves} | others


@pytest.mark.parametrize(
    ("about", "same", "elsewhere", "states", "rise", "turns", "busy", "alone"),
    [
        ("nothing runs", "", 0, {"a": "absent", "b": "failed"}, "ab", "", "", ""),
        ("this very plan runs", "a", 0, {"a": "ready"}, "a", "", "", ""),
        ("it is on its way with this plan", "a", 0, {"a": "starting"}, "a", "", "", ""),
        ("one gang, another plan", "", 0, {"a": "ready"}, "", "a", "", "a"),
        ("two gangs", "", 0, {"a": "ready", "b": "ready"}, "", "ab", "", ""),
        ("a gang of another plan serves", "", 1, {"a": "ready"}, "", "a", "", ""),
        ("one rises first, then serves", "", 0, {"a": "ready", "b": "absent"}, "b", "a", "", ""),
        ("one is there already", "a", 0, {"a": "ready", "b": "ready"}, "a", "b", "", ""),
        ("who does not serve goes first", "", 0, {"a": "ready", "b": "degraded"}, "", "ba", "", ""),
        ("it does not serve, and stands alone", "", 0, {"a": "degraded"}, "", "a", "", "a"),
        ("on its way with another plan", "", 1, {"a": "warming"}, "", "a", "a", ""),
        ("two, neither serves", "", 0, {"a": "degraded", "b": "degraded"}, "", "ab", "", "a"),
        ("it is stopping", "", 0, {"a": "draining", "b": "stopping"}, "ab", "", "", ""),
    ],
)
def test_the_course(
    about: str, same: str, elsewhere: int, states: dict[str, str], rise: str, turns: str, busy: str, alone: str
) -> None:
    wanted = ChangeSchedule(tuple(rise), tuple(turns), tuple(busy), dict.fromkeys(alone, ("m",)))
    assert course_of(same, elsewhere, **states) == wanted, about


def serving(name: str, model: str, *served: str) -> GangView:
    return GangView(name=name, state=GangState.READY, model=model, served=served, service_healthy=True)


@pytest.mark.parametrize(
    ("about", "views", "same", "elsewhere", "alone", "last"),
    [
        ("another model is no stand-in", [serving("a", "m")], "", ["x"], {"a": ("m",)}, {}),
        ("its own is", [serving("a", "m")], "", ["m"], {}, {}),
        ("the last of its model goes", [serving("a", "x"), serving("b", "m")], "b", [], {"a": ("x",)}, {"a": ("x",)}),
        ("one elsewhere keeps it", [serving("a", "x")], "", ["x"], {}, {}),
        ("a name of its own", [serving("a", "m", "x"), serving("b", "m")], "b", [], {"a": ("x",)}, {"a": ("x",)}),
        ("another model by the same name", [serving("a", "m")], "", ["x", "m"], {}, {}),
        (
            "one of two names, and the first gang is changed by then",
            [serving("a", "m"), serving("b", "m", "m", "x")],
            "",
            [],
            {},
            {"b": ("x",)},
        ),
    ],
)
def test_a_gang_stands_in_for_its_own_names_alone(
    about: str, views: list[GangView], same: str, elsewhere: list[str], alone: Serving, last: Serving
) -> None:
    planned = {view.name: ("m",) for view in views}
    found = change_schedule(views, tuple(same), serving=serving_now(views, elsewhere), planned=planned)
    assert (found.alone, found.last) == (alone, last), about


def test_an_alias_that_nobody_else_has_meanwhile_needs_no_consent() -> None:
    views, now = [serving("a", "m"), serving("b", "m")], {"a": ("m", "default"), "b": ("m",)}
    found = change_schedule(views, (), serving=now, planned={"a": ("m", "default"), "b": ("m",)})
    assert (found.alone, found.partly, found.last) == ({}, {"a": ("default",)}, {})
