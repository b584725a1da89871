"""How figures are judged: slow links, and the one part that they have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.model.benchmark import Between
from orchestrator.nettest.messages import NettestLine
from orchestrator.nettest.report import ModelShape, NettestResult, Verification, findings
from orchestrator.nettest.schedule import halves, schedule
from orchestrator.nettest.verdict import (
    Expectation,
    LinkEnd,
    LinkResult,
    NettestVerdict,
    Odd,
    bisected,
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


@pytest.mark.parametrize(
    ("nodes", "ranks", "speed", "slow", "name"),
    [
        (4, 1, lambda one, two: 10.0, 0, None),
        *(
            (nodes, 1, lambda one, two: 0.02 if {one, two} == {0, 2} else 8.0, 2, "node0 - node2")
            for nodes in (3, 4, 5)
        ),
        *((nodes, 1, lambda one, two: 0.02 if 1 in (one, two) else 8.0, 2 * nodes - 2, "node1") for nodes in (3, 4, 6)),
        (4, 1, lambda one, two: 1.0 if (one, two) == (3, 1) else 8.0, 1, "node3 - node1"),
        (4, 8, lambda one, two: 2.0 if 11 in (one, two) else 40.0, None, "node1 GPU 3"),
        (5, 1, lambda one, two: 1.0 if {one, two} in ({0, 1}, {2, 3}) else 8.0, 4, None),
    ],
)
def test_the_one_thing_that_slow_links_have_in_common_is_named(
    nodes: int, ranks: int, speed: Speed, slow: int | None, name: str | None
) -> None:
    found = measured(nodes, ranks, speed, gpus=ranks > 1)
    assert slow is None or sum(link.verdict is NettestVerdict.SLOW for link in found) == slow
    assert NettestVerdict.NONE not in {link.verdict for link in found}
    one = odd(found)
    assert (one and one.name) == name and (one is None or "the others of its kind" in one.why)


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
    verdicts = [
        overall(judge_links(steps, figures, places, {(Between.NODES, rank): wanted for rank in (0, 1)}))
        for wanted in (Expectation(100.0, "calculated", "a port", share) for share in (0.79, 0.81))
    ]
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


def named(nodes: int, pace: Callable[[set[int], int], float]) -> str:
    """pace: us of a half (numbers of its nodes) in its nth try."""
    places = cluster(nodes, 2)
    tries: dict[tuple[int, ...], int] = {}
    steps = schedule(places, 64)
    figures = []
    for step in steps:
        for number, ranks in enumerate(step.groups if step.between == Between.HALVES.value else ()):
            tries[ranks] = tries.get(ranks, -1) + 1
            us = pace({rank // 2 for rank in ranks}, tries[ranks])
            figures.append(NettestLine(step=step.id, group=number, bytes=1 << 20, us=us))
    odd = bisected(steps, figures, places)
    return odd.name if odd else ""


@pytest.mark.parametrize(("nodes", "slow"), [(4, 0), (4, 1), (4, 2), (4, 3), (8, 5), (16, 11), (6, 1)])
def test_a_slow_node_is_spelled_by_its_halves(nodes: int, slow: int) -> None:
    assert named(nodes, lambda half, _: 900.0 if slow in half else 300.0) == f"node{slow}"


@pytest.mark.parametrize(
    ("why", "nodes", "pace"),
    [
        ("nothing is slow", 4, lambda half, number: 300.0),
        ("less than twice as slow", 4, lambda half, number: 550.0 if 2 in half else 300.0),
        ("slow in one try alone", 4, lambda half, number: 900.0 if 2 in half and number == 0 else 300.0),
        ("two nodes are slow", 4, lambda half, number: 900.0 if half & {1, 2} else 300.0),
        ("one link is slow", 4, lambda half, number: 900.0 if {1, 3} <= half else 300.0),
        ("too few nodes for halves", 3, lambda half, number: 900.0 if 2 in half else 300.0),
        ("a half of one node says nothing", 5, lambda half, number: 900.0 if 0 in half else 300.0),
    ],
)
def test_nobody_is_named_without_proof(why: str, nodes: int, pace: Callable[[set[int], int], float]) -> None:
    assert named(nodes, pace) == "", why


@given(st.integers(1, 40))
def test_halves_are_of_two_nodes_at_least_and_few(nodes: int) -> None:
    found = list(halves(cluster(nodes, 2)))
    assert len(found) <= 6
    for one, two in found:
        assert len(one) >= 4 and len(two) >= 4
        assert sorted(one + two) == list(range(2 * nodes))


def test_what_was_not_measured_names_nobody() -> None:
    places = cluster(4, 2)
    assert bisected(schedule(places, 64), (), places) is None


def test_it_is_a_finding_where_no_link_is_slow() -> None:
    odd = Odd((LinkEnd("node2", -1),), "each half is slow")
    result = NettestResult(gang="gang0", nodes=("node0",), ranks=8, links=(), tests=(), transport={}, moved=(),
                           bisected=odd, shape=ModelShape(hidden_size=64, layers=2), seconds=1.0, steps_s=1.0,
                           verification=Verification(pairs=2, least=1 << 26, seconds=0.1))  # fmt: skip
    (finding,) = findings(result)
    assert (result.verdict, result.odd, finding.id, finding.node) == (
        NettestVerdict.SLOW,
        odd,
        "NETTEST-SLOW-NODE",
        "node2",
    )
