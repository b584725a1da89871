"""Rounds of the test of RDMA ports: no node begins a round before all have ended the previous one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.reference_cluster import topology
from tests.unit.nettest.steps.test_nettest import Fleet

from orchestrator.model.profile import Between
from orchestrator.nettest.messages import RailsLine, RailsRequest
from orchestrator.nettest.rails import RailPort, ways
from orchestrator.nettest.steps import ports as rails
from orchestrator.protocol.planned import NodeNetwork
from orchestrator.protocol.staging import Endpoint, StagingRequest
from orchestrator.topology.distance import Distances

NODES = ("node0", "node1", "node2", "node3")


def engine(**network: Any) -> StagingRequest:
    return StagingRequest(
        gang="gang0",
        run_id="r",
        node="node0",
        node_rank=0,
        nnodes=4,
        leader=Endpoint(port=1),
        network=NodeNetwork(**network),
    )


@pytest.mark.parametrize(
    ("pin", "devices"),
    [
        ("=mlx5_0:1,mlx5_3:1", ["mlx5_0", "mlx5_3"]),
        ("mlx5_0", ["mlx5_0"]),
        ("^mlx5_0", ["mlx5_1", "mlx5_3"]),
        ("^=mlx5_0,mlx5_1", ["mlx5_3"]),
        ("", ["mlx5_0", "mlx5_1", "mlx5_3"]),
        ("=mlx5_2", []),
    ],
)
def test_the_ports_are_those_that_nccl_takes(pin: str, devices: list[str]) -> None:
    """mlx5_2 is down."""
    before = topology()
    ports = tuple(replace(port, state="DOWN") if port.device == "mlx5_2" else port for port in before.rdma[:4])
    found = rails._ports("node0", engine(hca=pin, gid_index=3), replace(before, rdma=ports))
    assert [(port.device, port.gid) for port in found] == [(device, 3) for device in devices]
    every = replace(engine(hca=pin), gpus=tuple(range(8)))
    near = {port.device: port.gpu for port in rails._ports("node0", every, replace(before, rdma=ports))}
    distances = Distances(before)
    for port in ports:
        ways = {gpu.index: distances.path_type(gpu.key, port.key) for gpu in before.gpus}
        assert port.device not in near or ways[near[port.device]] == min(ways.values()), port
    assert all(port.gpu == -1 for port in found), "no GPU is the plan's"


@pytest.mark.parametrize(
    ("silent", "words"),
    [
        ({0, 1, 2, 3}, "measurements given up: node0 (8), node1 (8); the other end did not connect, or the time limit"),
        (set(), "between different rails given up: node0 (4), node1 (4); the rails may be separate networks, or the"),
    ],
)
def test_what_was_given_up_is_counted_and_separate_rails_are_told_from_a_node(silent: set[int], words: str) -> None:
    two = {
        node: [RailPort(node=node, device=f"mlx5_{n}", port=1, rate_gbps=100.0) for n in (0, 1)] for node in NODES[:2]
    }
    heard = rails._RailsAnswers(ways(two))
    for way in heard.order:
        if way.between is Between.RAIL and way.id not in silent:
            heard.take(way.start.node, RailsLine(run=way.id, text=" RDMA_Write BW Test", status=0))
    heard.take("node0", RailsLine(run=4, text="Couldn't connect to 10.0.0.2", status=1))
    assert words in heard.note()


def test_a_node_that_is_early_waits_for_the_others_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next partner may still listen for another node, on the same port."""
    told: list[tuple[str, str]] = []
    asked: dict[str, list[set[int]]] = {name: [] for name in NODES}

    def messages(session: Any, verb: str, request: RailsRequest, line: type[RailsLine], *_: object) -> Any:
        name = session.spec.name
        told.append(("begin", name))
        asked[name].append({run.id for run in request.order.runs})
        for run in request.order.runs:
            yield RailsLine(run=run.id, text="", status=0)
        told.append(("end", name))
        yield RailsLine(ended=True)

    monkeypatch.setattr(rails, "messages", messages)
    monkeypatch.setattr(rails, "fence", lambda *_: "")
    monkeypatch.setattr(rails, "request_keys", lambda *_: {"state_dir": "/s", "gang": "gang0"})
    monkeypatch.setattr(rails, "in_place_of", lambda one: one)
    monkeypatch.setattr(
        rails, "_ports", lambda name, *_: (RailPort(node=name, device="mlx5_0", port=1, rate_gbps=100.0),)
    )
    addresses = {f"10.0.0.{number}": name for number, name in enumerate(NODES)}
    requests = {name: replace(engine(), node=name, addresses=addresses) for name in NODES}
    gang = SimpleNamespace(name="gang0", leader=SimpleNamespace(ports=SimpleNamespace(dist_init=5000)))
    measured = rails.measure(Fleet(), gang, requests, {}, enough=0.8)  # type: ignore[arg-type]
    assert len(measured.links) == 12
    rounds = [told[place : place + 8] for place in range(0, len(told), 8)]
    assert len(rounds) == 3
    for one in rounds:
        assert sorted(one) == sorted((what, name) for what in ("begin", "end") for name in NODES)
    assert all(len(asked[name]) == 3 and not set.intersection(*asked[name]) for name in NODES)
