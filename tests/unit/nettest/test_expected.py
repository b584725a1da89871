"""Expectations from the reference cluster's own files, each with its source; nothing if unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.healthy_cluster import cluster_of, healthy_nodes

from orchestrator.model.benchmark import Between
from orchestrator.nettest.expected import NodeHardware, expectations
from orchestrator.nettest.schedule import Place, schedule
from orchestrator.nettest.verdict import Expectation


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
