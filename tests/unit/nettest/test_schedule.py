"""The schedule: every pair of nodes, no rank in two groups at once, and the links inside a node."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.model.benchmark import Between
from orchestrator.nettest.messages import ALL_REDUCE, PAIRS
from orchestrator.nettest.schedule import LARGE, TRIES, Place, rounds, schedule, switch_groups

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
