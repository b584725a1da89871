"""Bisection as a table: the speed of each half of the nodes, and the node that this identifies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.model.benchmark import Between
from orchestrator.nettest.halves import bisected
from orchestrator.nettest.messages import NettestLine
from orchestrator.nettest.report import ModelShape, NettestResult, findings
from orchestrator.nettest.schedule import halves, schedule
from orchestrator.nettest.verdict import NettestVerdict, Odd
from orchestrator.nettest.verification import Verification

from .test_schedule import cluster


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
    return odd.node if odd else ""


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
    odd = Odd(node="node2", why="each half is slow")
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
