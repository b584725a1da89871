"""How figures are judged: slow links, and the one part that they have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.model.benchmark import Between
from orchestrator.nettest.messages import NettestLine
from orchestrator.nettest.schedule import schedule
from orchestrator.nettest.verdict import (
    Expectation,
    LinkResult,
    NettestVerdict,
    judge_links,
    judge_tests,
    odd,
    overall,
    usual,
)

from .test_schedule import cluster

Speed = Callable[[int, int], float]
"""Gb/s from one rank to another."""


def measured(nodes: int, ranks: int, speed: Speed, *, gpus: bool = False) -> tuple[LinkResult, ...]:
    places = cluster(nodes, ranks, switches=2 if gpus else 0, sockets=2 if gpus else 0)
    steps = schedule(places, 64)
    figures = [
        NettestLine(step=step.id, group=number, bytes=1 << 20, us=(1 << 20) * 8e-3 / speed(*group))
        for step in steps
        if step.kind == "pairs"
        for number, group in enumerate(step.groups)
    ]
    return judge_links(steps, figures, places, {})


def test_equal_links_are_all_right() -> None:
    found = measured(4, 1, lambda *_: 10.0)
    assert {link.verdict for link in found} == {NettestVerdict.OK}
    assert len(found) == 12
    assert odd(found) is None


@pytest.mark.parametrize("nodes", [3, 4, 5])
def test_one_slow_link_names_its_two_nodes(nodes: int) -> None:
    found = measured(nodes, 1, lambda one, two: 0.02 if {one, two} == {0, 2} else 8.0)
    one = odd(found)
    assert one is not None and one.name in ("node0 - node2", "node2 - node0")
    assert "the others of its kind" in one.why


@pytest.mark.parametrize("nodes", [3, 4, 6])
def test_a_slow_node_is_named_even_where_most_links_are_slow(nodes: int) -> None:
    found = measured(nodes, 1, lambda one, two: 0.02 if 1 in (one, two) else 8.0)
    one = odd(found)
    assert one is not None and (one.node, one.gpu, one.name) == ("node1", None, "node1")


def test_one_direction_is_enough() -> None:
    one = odd(measured(4, 1, lambda one, two: 1.0 if (one, two) == (3, 1) else 8.0))
    assert one is not None and (one.start, one.end) == ("node3", "node1")


def test_a_gpu_that_is_slow_towards_all_is_named() -> None:
    found = measured(4, 8, lambda one, two: 2.0 if 11 in (one, two) else 40.0, gpus=True)
    one = odd(found)
    assert one is not None and (one.node, one.gpu) == ("node1", 3)


def test_two_slow_links_that_share_nothing_have_no_one_cause() -> None:
    found = measured(5, 1, lambda one, two: 1.0 if {one, two} in ({0, 1}, {2, 3}) else 8.0)
    assert sum(link.verdict is NettestVerdict.SLOW for link in found) == 4
    assert odd(found) is None


def test_a_try_that_was_fast_clears_a_link() -> None:
    places = cluster(3, 1)
    steps = schedule(places, 64)
    pairs = [step for step in steps if step.kind == "pairs"]
    half = len(pairs) // 2
    figures = [
        NettestLine(step=step.id, group=0, bytes=1 << 20, us=1e6 if number == 0 else 100)
        for number, step in enumerate(pairs)
    ]
    found = judge_links(steps, figures, places, {})
    assert {len(link.gbps) for link in found} == {2} and len(found) == half
    assert overall(found) is NettestVerdict.OK


def test_two_links_alone_are_not_judged_without_an_expectation() -> None:
    found = measured(2, 1, lambda one, two: 1.0 if one else 8.0)
    assert overall(found) is NettestVerdict.NONE


def test_an_expectation_is_held_with_the_share_that_is_asked_for() -> None:
    places = cluster(2, 1)
    steps = schedule(places, 64)
    figures = [NettestLine(step=step.id, group=0, bytes=10**6, us=100) for step in steps if step.kind == "pairs"]
    expected = {(Between.NODES, rank): Expectation(100.0, "calculated", "a port") for rank in (0, 1)}
    verdicts = [overall(judge_links(steps, figures, places, expected, enough=share)) for share in (0.79, 0.81)]
    assert verdicts == [NettestVerdict.OK, NettestVerdict.SLOW]


def test_an_all_reduce_that_did_not_fit_its_box_is_slow_where_something_is_expected() -> None:
    places = cluster(2, 1)
    step, *_ = steps = schedule(places, 7168)
    figures = [NettestLine(step=0, group=0, bytes=min(size, 4096), us=50.0) for size in step.bytes]
    expected = {(Between.ALL, 14336): Expectation(48.0, "calculated", "a model")}
    found = judge_tests(steps, figures, places, expected)
    assert [test.verdict for test in found] == [NettestVerdict.SLOW, *[NettestVerdict.NONE] * 4]
    assert (found[0].wanted, found[0].bytes) == (14336, 4096)


def test_an_all_reduce_is_slow_only_where_every_try_of_it_was() -> None:
    places = cluster(2, 1)
    steps = schedule(places, 7168)
    first, second = [step for step in steps if step.kind == "all-reduce"]
    expected = {(Between.ALL, size): Expectation(66.0, "measured", "the test before", 0.5) for size in first.bytes}
    small, large = first.bytes[0], first.bytes[-1]

    def found(step: int, *times: float) -> list[NettestLine]:
        return [
            NettestLine(step=step, group=0, bytes=size, us=us) for size, us in zip(first.bytes, times, strict=False)
        ]

    disturbed = judge_tests(steps, found(first.id, 394, 70, 70) + found(second.id, 70, 394), places, expected)
    assert [(test.us, test.verdict) for test in disturbed] == [(70, NettestVerdict.OK)] * 3
    slow = judge_tests(steps, found(first.id, 394) + found(second.id, 200), places, expected)
    assert [(test.wanted, test.us, test.verdict) for test in slow] == [(small, 200, NettestVerdict.SLOW)]
    fitted = [NettestLine(step=one.id, group=0, bytes=small, us=9.0) for one in (first, second) for _ in first.bytes]
    assert judge_tests(steps, fitted, places, expected)[-1].wanted == large


@given(st.lists(st.floats(0.01, 1000), max_size=50))
def test_the_usual_speed_is_never_above_half_of_the_best(bests: Sequence[float]) -> None:
    assert usual(bests) <= 0.5 * max(bests, default=0.0) + 1e-9


def test_a_link_that_kept_up_with_another_in_the_same_seconds_is_not_slow() -> None:
    places = cluster(3, 1)
    steps = [step for step in schedule(places, 64) if step.kind == "pairs"]
    size = 1 << 20
    figures = [
        NettestLine(step=step.id, group=0, bytes=size, us=100.0 if step.groups[0] != (0, 1) else 1000.0)
        for step in steps
    ]
    (again, *_) = [step.id for step in steps if step.groups[0] == (0, 1)]
    slow = NettestLine(step=again, group=0, bytes=size, us=1000.0, beside_us=100.0)
    kept_up = NettestLine(step=again, group=0, bytes=size, us=1000.0, beside_us=600.0)
    one = odd(judge_links(steps, [*figures, slow], places, {}))
    assert one is not None and one.name == "node0 - node1"
    found = judge_links(steps, [*figures, slow, kept_up], places, {})
    assert overall(found) is NettestVerdict.OK
