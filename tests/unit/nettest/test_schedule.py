"""The schedule: every pair of nodes, no rank in two groups at once, and the links inside a node."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.healthy_cluster import cluster_of, healthy_nodes

from orchestrator.model.benchmark import Between
from orchestrator.nettest.messages import ALL_REDUCE, PAIRS
from orchestrator.nettest.schedule import LARGE, TRIES, Place, rounds, schedule, switch_groups
from orchestrator.nettest.verdict import Expectation, NodeHardware, expectations

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
