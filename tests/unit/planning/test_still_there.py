"""Devices that a plan names and a node no longer has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.reference_cluster import topology

from orchestrator.model.topology import RdmaPort, Topology
from orchestrator.planning.facts_of_now import gone
from orchestrator.protocol.network import NodeNetwork, Transport
from orchestrator.protocol.staging import Endpoint, StagingRequest

WAS = topology()
REQUEST = StagingRequest(
    gang="gang0",
    run_id="r",
    node="node0",
    node_rank=0,
    nnodes=4,
    leader=Endpoint(port=7700),
    gpus=tuple(range(8)),
    network=NodeNetwork(transport=Transport.RDMA, hca="=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1", gid_index=3),
)


def with_port(**changes: Any) -> Topology:
    first, *rest = WAS.rdma
    return replace(WAS, rdma=(replace(first, **changes), *rest))


def shifted(port: RdmaPort) -> Topology:
    return with_port(gids=tuple(replace(gid, index=gid.index + 1) for gid in port.gids))


CASES = [
    ("nothing changed", WAS, []),
    ("a GPU is lost", replace(WAS, gpus=(*WAS.gpus[:7], replace(WAS.gpus[7], lost="GPU is lost"))), ["GPU 7"]),
    ("a GPU is gone", replace(WAS, gpus=WAS.gpus[1:]), ["GPU 0"]),
    ("a card is gone", replace(WAS, rdma=WAS.rdma[1:]), ["RDMA port mlx5_0:1"]),
    ("a cable", with_port(state="DOWN"), ["RDMA port mlx5_0:1 (DOWN)"]),
    ("the GIDs moved", shifted(WAS.rdma[0]), ["a RoCE v2 GID at index 3 of mlx5_0:1 (it has "]),
    ("NVML does not answer", replace(WAS, gpus=(), nvml_error="timeout"), []),
]


@pytest.mark.parametrize(("now", "wanted"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_is_gone(now: Topology, wanted: list[str]) -> None:
    told = list(gone(REQUEST, now))
    assert len(told) == len(wanted)
    assert all(words.startswith(start) for words, start in zip(told, wanted, strict=True))


def test_a_plan_over_tcp_needs_no_port() -> None:
    assert list(gone(replace(REQUEST, network=NodeNetwork(transport=Transport.TCP)), replace(WAS, rdma=()))) == []
    assert list(gone(replace(REQUEST, gpus=(), network=NodeNetwork()), replace(WAS, rdma=()))) == []
