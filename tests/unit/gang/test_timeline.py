"""Events of several nodes in one order."""

from __future__ import annotations

import pytest

from orchestrator.gang.timeline import NodeEvents, timeline


def events(at: float, what: str, **more: object) -> list[dict[str, object]]:
    return [{"at": at, "event": what, **more}]


@pytest.mark.parametrize(("ahead_a", "ahead_b"), [(0.05, -0.01), (-0.03, 0.06), (0.0, 0.0)])
def test_nodes_whose_clocks_may_agree_keep_the_order_of_their_own_times(ahead_a: float, ahead_b: float) -> None:
    """The answers took 0.13 s, so the clocks' difference is known to within 0.065 s only."""
    told = {
        "a": NodeEvents(events=events(100.000, "cause", text="TP0 died"), ahead_s=ahead_a, doubt_s=0.065),
        "b": NodeEvents(events=events(100.012, "end"), ahead_s=ahead_b, doubt_s=0.065),
    }
    assert [one.node for one in timeline(told)] == ["a", "b"]


def test_a_clock_that_is_known_to_differ_is_corrected() -> None:
    told = {
        "a": NodeEvents(events=events(100.0, "cause"), ahead_s=0.0, doubt_s=0.05),
        "b": NodeEvents(events=events(90.0, "end"), ahead_s=-11.0, doubt_s=0.05),
    }
    assert [(one.node, one.at) for one in timeline(told)] == [("a", 100.0), ("b", 101.0)]


def test_a_state_is_said_once() -> None:
    (one,) = timeline({"a": NodeEvents(events=events(1.0, "state", state="failed"))})
    assert f"{one.what} {one.words}" == "state failed"
