"""What is compared and measured, and between whom; what it should be; how figures are judged: slow links, the one part
that they have in common, and what it means where data differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.healthy_cluster import cluster_of, healthy_nodes

from orchestrator.model.profile import Between
from orchestrator.nettest.messages import ALL_REDUCE, PAIRS, NettestLine
from orchestrator.nettest.nettest_report import (
    Corrupt,
    ModelShape,
    NettestResult,
    Verification,
    data_finding,
    findings,
    verified,
)
from orchestrator.nettest.schedule import LARGE, TRIES, Place, halves, rounds, schedule, switch_groups, verification
from orchestrator.nettest.verdict import (
    Expectation,
    LinkEnd,
    LinkResult,
    NettestVerdict,
    NodeHardware,
    Odd,
    bisected,
    expectations,
    judge_links,
    judge_tests,
    odd,
    overall,
    usual,
)
from orchestrator.protocol.severity import Severity

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


HIDDEN = 7168


def cluster(nodes: int, ranks: int, *, switches: int = 0, sockets: int = 0) -> tuple[Place, ...]:
    each = range(ranks)
    return tuple(
        Place(
            node=f"node{number}",
            ranks=tuple(range(number * ranks, (number + 1) * ranks)),
            gpus=tuple(each) if switches or sockets else (),
            switch=tuple(f"switch{gpu * switches // ranks}" for gpu in each) if switches else (),
            numa=tuple(gpu * sockets // ranks for gpu in each) if sockets else (),
        )
        for number in range(nodes)
    )


@given(st.integers(1, 17), st.integers(1, 8))
def test_every_pair_of_nodes_meets_once_and_nobody_is_in_two_places(nodes: int, ranks: int) -> None:
    places = cluster(nodes, ranks)
    met = [{one.node, two.node} for pairs in rounds(places) for one, two in pairs]
    assert sorted(map(sorted, met)) == sorted(map(list, combinations(sorted(place.node for place in places), 2)))
    for step in schedule(places, HIDDEN):
        busy = [rank for group in step.groups for rank in group]
        assert len(busy) == len(set(busy)), step


def test_the_reference_cluster_measures_what_the_engine_does() -> None:
    steps = schedule(cluster(4, 8, switches=2, sockets=2), HIDDEN)
    collectives = [step for step in steps if step.captured]
    first, nodes, switches = collectives[:3]
    ways = [step for step in steps if not step.captured]
    assert [step.id for step in steps] == list(range(len(steps)))
    assert (first.kind, first.bytes) == (ALL_REDUCE, (14336, 57344, 458752, 1835008, LARGE))
    assert [len(group) for group in nodes.groups] == [8] * 4
    assert [len(group) for group in switches.groups] == [4] * 8
    assert [step.groups for step in collectives] == [first.groups, nodes.groups, switches.groups] * TRIES
    assert steps.index(collectives[3]) >= len(steps) // 2, "what slowed the first try down is over"
    kinds = [Between(step.between) for step in ways]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        Between.NODES: 3 * 2 * TRIES,
        Between.OTHER_HALF: 2 * TRIES,
        Between.SAME_SWITCH: 2 * TRIES,
        Between.ACROSS_SOCKETS: 2 * TRIES,
        Between.HALVES: 2 * TRIES,
    }
    crossed = next(step for step in ways if step.between == Between.OTHER_HALF.value)
    assert all((one % 8 < 4) != (two % 8 < 4) for one, two in crossed.groups)
    assert all(step.box_s * len(step.bytes) <= 1.5 for step in steps)


def test_a_small_model_has_each_size_of_a_try_once_and_one_node_no_way_to_another() -> None:
    steps = schedule(cluster(1, 2), 1)
    assert steps[0].bytes == (2, 8, 64, 256, LARGE)
    assert {(step.kind, step.between) for step in steps} == {
        (ALL_REDUCE, Between.ALL.value),
        (PAIRS, Between.SAME_NODE.value),
    }


def test_a_gpu_without_a_switch_is_in_no_group() -> None:
    place = Place(node="n", ranks=(4, 5, 6), gpus=(0, 1, 2), switch=("a", "", "a"), numa=(0, 0, 0))
    assert switch_groups(place) == ((4, 6),)


def reference(*, rdma: bool, nodes: int = 4) -> dict[tuple[Between, int], Expectation]:
    topologies = cluster_of(healthy_nodes(nodes)).topologies
    places, machines = [], {}
    for number, (name, topology) in enumerate(topologies.items()):
        gpus = sorted(topology.gpus, key=lambda gpu: gpu.index)
        places.append(
            Place(
                node=name,
                ranks=tuple(range(number * 8, number * 8 + 8)),
                gpus=tuple(gpu.index for gpu in gpus),
                switch=tuple(gpu.switch for gpu in gpus),
                numa=tuple(gpu.numa_node for gpu in gpus),
            )
        )
        machines[name] = NodeHardware(topology=topology, nccl=(2, 21, 5), rdma=rdma, rate_gbps=400.0 if rdma else 0.0)
    return expectations(schedule(places, 7168), places, machines)


def test_the_reference_cluster_over_rdma() -> None:
    found = reference(rdma=True)
    assert found[Between.SAME_SWITCH, 0].value == pytest.approx(24 * 8)
    assert found[Between.NODES, 0].value == pytest.approx(400 * 0.92 / 8)
    assert "shared by 8 GPUs" in found[Between.NODES, 0].source
    across = found[Between.ACROSS_SOCKETS, 0]
    assert across.basis == "measured" and across.value in (11.0 * 8, 19.0 * 8, 10.0 * 8)
    reduces = {size: one.value for (between, size), one in found.items() if between is Between.ALL}
    assert reduces == {14336: 48.0, 57344: 63.0, 458752: 158.0, 1835008: 283.0}
    assert all(one.source and one.basis in ("calculated", "measured") for one in found.values())


def test_over_tcp_nobody_knows_what_passes_between_nodes() -> None:
    found = reference(rdma=False)
    assert {between for between, _ in found} == {Between.SAME_SWITCH, Between.ACROSS_SOCKETS}
    assert found[Between.ACROSS_SOCKETS, 0].value <= 11.0 * 8


def test_another_number_of_nodes_has_no_calculated_all_reduce() -> None:
    assert not [size for between, size in reference(rdma=True, nodes=2) if between is Between.ALL]


def test_nothing_is_expected_of_processors() -> None:
    topologies = cluster_of(healthy_nodes(2)).topologies
    places = [Place(node=name, ranks=(number,)) for number, name in enumerate(topologies)]
    machine = NodeHardware(topology=topologies["node0"], nccl=(2, 21, 5), rdma=True, rate_gbps=400.0)
    machines = {name: replace(machine, topology=topology) for name, topology in topologies.items()}
    assert expectations(schedule(places, 128), places, machines) == {}


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_every_pair_within_a_node_and_every_two_nodes_are_compared_both_ways(sizes: list[int]) -> None:
    places, first = list[Place](), 0
    for number, count in enumerate(sizes):
        ranks = tuple(range(first, first + count))
        places.append(Place(node=f"node{number}", ranks=ranks, gpus=tuple(range(count))))
        first += count
    steps = verification(places, 64)
    assert [step.id for step in steps] == list(range(len(steps))) and all(step.verify for step in steps)
    kinds = [step.kind for step in steps]
    assert kinds == sorted(kinds, key=[PAIRS, ALL_REDUCE].index), "a corrupt pair ends the test before sums"
    pairs = [(one, two) for step in steps if step.kind == PAIRS for one, two in step.groups]
    where = {rank: place.node for place in places for rank in place.ranks}
    assert {pair for place in places for pair in permutations(place.ranks, 2)} <= set(pairs)
    assert {(where[one], where[two]) for one, two in pairs} >= set(permutations([place.node for place in places], 2))
    for step in steps:
        busy = [rank for group in step.groups for rank in group]
        assert len(busy) == len(set(busy)), step
        assert LARGE in step.bytes


def compared(places: tuple[Place, ...], wrong: dict[tuple[int, ...], int]) -> list[NettestLine]:
    """All that the ranks of a test say. wrong: bytes of a pair (start, end) or of a sum (rank,)"""
    found = []
    for step in verification(places, 64):
        for place, group in enumerate(step.groups):
            for rank in group if step.kind == ALL_REDUCE else group[1:]:
                key = (rank,) if step.kind == ALL_REDUCE else group
                found.append(NettestLine(step=step.id, group=place, rank=rank, bytes=LARGE, wrong=wrong.get(key, 0)))
    return found


@pytest.mark.parametrize(
    ("gpus", "wrong", "node", "words", "tries"),
    [
        (True, {(0, 1): 2}, "node0", ["1 of ", "node0 GPU 0 to node0 GPU 1"], "NCCL_P2P_DISABLE"),
        (True, {(0, 1): 2, (3, 0): 1}, "node0", ["2 of ", "all of them at node0 GPU 0"], "IOMMU"),
        (True, {(0, 4): 2}, "", ["node0 GPU 0 to node1 GPU 0"], "NCCL_NET_GDR_LEVEL"),
        (True, {(1, 0): 1, (4, 0): 1}, "node0", ["all of them at node0 GPU 0"], "ACS"),
        (True, {(2,): 7}, "node0", ["every pair is right", "all-reduce of all ranks to node0 GPU 2"], "driver"),
        (False, {(0, 4): 2}, "", ["node0 to node1"], "ethtool"),
    ],
)
def test_the_finding_names_pairs_and_what_they_share(
    gpus: bool, wrong: dict[tuple[int, ...], int], node: str, words: list[str], tries: str
) -> None:
    places = cluster(2, 4, switches=2 if gpus else 0)
    found = verified(verification(places, 64), compared(places, wrong), places, 0.5)
    said = data_finding("g7", found)
    assert said is not None and (said.id, said.severity, said.node) == ("DATA-CORRUPT", Severity.STOP, node)
    assert all(one in said.title for one in words), said.title
    assert tries in said.fix and said.fix.endswith("l40s-deploy nettest --verify g7")
    assert found.as_json()["verdict"] == "corrupt"
    assert sum(one["bytes"] for one in found.as_json()["corrupt"]) >= sum(wrong.values())


def test_right_data_is_no_finding_and_what_nobody_compared_is_not_right() -> None:
    places = cluster(2, 2, switches=1)
    steps, said = verification(places, 64), compared(places, {})
    found = verified(steps, said, places, 0.5)
    assert (found.as_json()["verdict"], found.least, data_finding("g", found)) == ("ok", LARGE, None)
    assert found.pairs == 2 * 2 + 2 * 2 * 2
    for missing in range(len(said)):
        with pytest.raises(LookupError):
            verified(steps, said[:missing] + said[missing + 1 :], places, 0.5)


def test_many_pairs_are_counted() -> None:
    ends = [LinkEnd("node0", rank, rank) for rank in range(20)]
    corrupt = tuple(Corrupt(start=one, end=two, bytes=1) for one, two in zip(ends[::2], ends[1::2], strict=True))
    said = data_finding("g", Verification(pairs=380, least=1, seconds=1.0, corrupt=corrupt))
    assert said is not None and "10 of 380 pairs" in said.title and "and 2 more" in said.title
