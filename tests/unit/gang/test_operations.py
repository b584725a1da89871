"""Records that nodes keep of something begun, and the messages about them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.gang.guarding import GuardAction, GuardDecision, GuardMemory, Policy, decide
from orchestrator.gang.operations import GangOperation, OperationKind, sentence, together
from orchestrator.gang.steps.restart import _options
from orchestrator.gang.steps.restart_sequence import RestartRequest
from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState

SOME = GangOperation(
    gang="a", what=OperationKind.ROLLING, was_run="r1", command="restart --rolling", who="anna", host="desk", since=5.0
)


def test_it_is_read_as_it_was_written() -> None:
    full = replace(SOME, turning=True, by_hand=True, options={"drain_s": 3.0})
    assert together([full.as_json()]) == full
    assert together([{**full.as_json(), "of a later release": 1}]) == full


@given(st.recursive(st.none() | st.integers() | st.text(), lambda some: st.dictionaries(st.text(), some)))
def test_anything_else_is_nothing(raw: Any) -> None:
    assert together([raw, None]) is None


def test_nodes_that_a_killed_controller_did_not_reach_any_more_do_not_count() -> None:
    turning, later = replace(SOME, turning=True), replace(SOME, since=6.0, what=OperationKind.CHANGE)
    for kept, told in (((SOME, turning), turning), ((turning, later), later), ((turning, SOME), turning)):
        assert together([*(one.as_json() for one in kept), None]) == told


def test_one_line_for_each_operation() -> None:
    lines = sentence([replace(SOME, turning=True), replace(SOME, gang="b"), replace(SOME, gang="c")])
    (line,) = lines
    assert line.startswith("a rolling restart was interrupted (anna@desk): a partly done; b, c not started: ")
    assert line.endswith("run `l40s-deploy up`")
    assert sentence([]) == []


def test_a_plan_without_a_verdict_is_told_and_not_let_in() -> None:
    left = replace(SOME, what=OperationKind.CHANGE, turning=True, unjudged=True)
    assert left.lets_in("r1") and not left.lets_in("r2") and replace(left, unjudged=False).lets_in("r2")
    (line,) = sentence([left, replace(SOME, what=OperationKind.CHANGE, gang="b")])
    assert "b not started; its `up --gate` came to no verdict, so that `up` returns to the plan before: run" in line


GUARDED = [
    (GangState.ABSENT, None, GuardAction.NOTHING),
    (GangState.ABSENT, SOME, GuardAction.NOTHING),
    (GangState.ABSENT, replace(SOME, turning=True), GuardAction.RESTART),
    (GangState.READY, replace(SOME, turning=True), GuardAction.RESTART),
    (GangState.ABSENT, replace(SOME, turning=True, by_hand=True), GuardAction.NOTHING),
    (GangState.FAILED, replace(SOME, by_hand=True), GuardAction.RESTART),
]


@pytest.mark.parametrize(("state", "begun", "wanted"), GUARDED)
def test_a_guard_finishes_the_turn_that_a_killed_command_has_left(
    state: GangState, begun: GangOperation | None, wanted: GuardAction
) -> None:
    decision, _ = decide(GangView(name="a", state=state), GuardMemory(), 0.0, Policy(), begun)
    assert decision == GuardDecision(wanted, decision.why)


def test_what_one_of_several_nodes_says_was_begun_is_nothing() -> None:
    forged = replace(SOME, turning=True, since=1e10, options={"run": "evil", "accept": ["GPU-ECC"]}).as_json()
    assert together([forged, None, None, None]) is None
    assert together([forged, None]) is None
    assert together([forged, SOME.as_json(), SOME.as_json()]) == SOME


def test_an_option_counts_where_all_that_keep_it_have_it_alike() -> None:
    theirs = {"timeout_s": 5.0, "now": True}
    kept = [replace(SOME, options=theirs), replace(SOME, options={**theirs, "now": False, "accept": ["X"]})]
    told = together([one.as_json() for one in kept])
    assert told is not None and dict(told.options) == {"timeout_s": 5.0}


@pytest.mark.parametrize(
    ("kept", "counts"),
    [
        ({"timeout_s": 60.0, "now": True, "wait_s": 5}, {"timeout_s": 60.0, "now": True, "wait_s": 5.0}),
        ({"run": "evil", "accept": ["GPU-ECC"], "reboots": True, "without_router": True, "command": "x"}, {}),
        ({"timeout_s": "60", "hung_after_s": None, "wait_s": True, "now": 1}, {}),
        ({"timeout_s": -1.0, "hung_after_s": 1e300, "wait_s": 0}, {}),
    ],
)
def test_of_kept_options_only_seconds_and_draining_are_taken(kept: dict[str, Any], counts: dict[str, Any]) -> None:
    assert _options(kept) == counts
    assert RestartRequest(**_options(kept)).run == ""
