"""Changes under a staged plan are detected: interface, RDMA ports, GID index."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.reference_cluster import gang, topologies, topology
from tests.support.reference_plan import plan_of, staged

from orchestrator.gang.steps.staging import resolved_on
from orchestrator.model.inventory import NodeSpec, Overrides
from orchestrator.model.topology import RAILS, Area, NotRead, Topology
from orchestrator.planning.facts_of_now import Moved, gone, moved, off_the_rails
from orchestrator.protocol.planned import NodeNetwork, Transport
from orchestrator.protocol.staging import Endpoint, StagingRequest
from orchestrator.rendering import exported_anew
from orchestrator.topology.gpus import Machine

SPEC = gang(4)
NODE = SPEC.nodes[2]
WAS = topologies(SPEC)["node2"]


@pytest.fixture(scope="module")
def request_() -> StagingRequest:
    return staged(SPEC, plan_of(SPEC))["node2"]


def shifted(node: Topology, ports: int, by: int = 2) -> Topology:
    """The GIDs of the first so many ports have other indices."""
    moved_ports = tuple(
        replace(port, gids=tuple(replace(gid, index=gid.index + by) for gid in port.gids)) if place < ports else port
        for place, port in enumerate(node.rdma)
    )
    return replace(node, rdma=moved_ports)


def renamed(node: Topology, was: str, now: str) -> Topology:
    return replace(
        node, interfaces=tuple(replace(one, name=now) if one.name == was else one for one in node.interfaces)
    )


def resolved(request: StagingRequest, node: Topology, spec: NodeSpec = NODE) -> tuple[StagingRequest, str]:
    return resolved_on(spec, request, {spec.name: node})


def test_nothing_moved(request_: StagingRequest) -> None:
    assert moved(request_, Machine(NODE, WAS)) == Moved(request_.network, "")
    assert resolved(request_, WAS) == (request_, "")


def test_a_moved_gid_index_is_found_again(request_: StagingRequest) -> None:
    now, words = resolved(request_, shifted(WAS, 99))
    assert words == "GID index 3 -> 5"
    assert now.env == {**request_.env, "NCCL_IB_GID_INDEX": "5"}
    assert now.launch_script == request_.launch_script.replace(
        "export NCCL_IB_GID_INDEX=3\n", "export NCCL_IB_GID_INDEX=5\n"
    )
    assert now.launch_script != request_.launch_script and now.launch_sha256 != request_.launch_sha256
    assert (now.plan_id, now.argv) == (request_.plan_id, request_.argv)


def test_the_variable_is_omitted_where_one_nodes_ports_differ_and_set_again_where_they_do_not(
    request_: StagingRequest,
) -> None:
    without, words = resolved(request_, shifted(WAS, 1))
    assert "GID index 3 -> chosen by NCCL for each port" in words
    assert "NCCL_IB_GID_INDEX" not in without.env and "GID_INDEX" not in without.launch_script
    again, words = resolved(without, WAS)
    assert words == "GID index chosen by NCCL -> 3"
    assert again.env == request_.env and "\nexport NCCL_IB_GID_INDEX=3\n" in again.launch_script


def test_the_addresses_by_which_nccl_finds_each_ports_gid_are_what_a_plan_would_render(
    request_: StagingRequest,
) -> None:
    without, _ = resolved(request_, shifted(WAS, 1))
    assert without.env["NCCL_IB_ADDR_RANGE"] == "10.0.0.0/13"
    assert "\nexport NCCL_IB_ADDR_RANGE=10.0.0.0/13\n" in without.launch_script
    assert "ADDR_RANGE" not in resolved(without, WAS)[0].launch_script
    fewer = replace(shifted(WAS, 1), rdma=shifted(WAS, 1).rdma[:2])
    now, words = resolved(without, fewer)
    assert now.env["NCCL_IB_ADDR_RANGE"] == "10.0.0.0/14" and "10.0.0.0/13 -> 10.0.0.0/14" in words
    back, words = resolved(now, shifted(WAS, 1))
    assert back.env == without.env and "10.0.0.0/14 -> 10.0.0.0/13" in words
    by_hand = replace(NODE, overrides=Overrides(env=(("NCCL_IB_ADDR_RANGE", "10.0.0.0/8"),)))
    assert "ADDR_RANGE" not in resolved(request_, shifted(WAS, 1), by_hand)[0].launch_script


@pytest.fixture(scope="module")
def in_a_container() -> StagingRequest:
    return staged(SPEC, plan_of(SPEC, stack="tests/golden/plan/in-docker/stack.yml"))["node2"]


def test_a_container_is_told_of_a_variable_that_was_not_staged_and_of_none_that_is_gone(
    in_a_container: StagingRequest,
) -> None:
    without, _ = resolved(in_a_container, shifted(WAS, 1))
    assert "NCCL_IB_GID_INDEX" not in without.launch_script
    assert without.launch_script.count("    --env NCCL_IB_ADDR_RANGE \\\n") == 1
    again, words = resolved(without, WAS)
    assert words == "GID index chosen by NCCL -> 3"
    assert again.launch_script.count("    --env NCCL_IB_GID_INDEX \\\n") == 1
    assert sorted(again.launch_script.splitlines()) == sorted(in_a_container.launch_script.splitlines())


def test_a_renamed_interface_is_found_by_its_address(request_: StagingRequest) -> None:
    now, words = resolved(request_, renamed(WAS, "bond0", "bond7"))
    assert words == "interface bond0 -> bond7"
    assert now.env["GLOO_SOCKET_IFNAME"] == "bond7" and now.env["NCCL_SOCKET_IFNAME"] == "=bond7"
    assert "export NCCL_SOCKET_IFNAME='=bond7'\n" in now.launch_script and "=bond0" not in now.launch_script


def test_ports_in_another_order_and_a_dead_one_are_planned_for(request_: StagingRequest) -> None:
    other = tuple(replace(port, device=port.device.replace("mlx5_", "mlx5_1")) for port in WAS.rdma)
    assert resolved(request_, replace(WAS, rdma=other))[1].startswith("RDMA ports mlx5_0:1,")
    dead = replace(WAS, rdma=(replace(WAS.rdma[0], state="DOWN"), *WAS.rdma[1:]))
    now, words = resolved(request_, dead)
    assert words.startswith("RDMA ports ") and "mlx5_0:1" not in now.env["NCCL_IB_HCA"]
    assert "(with fewer ports, decoding at " in words and "tokens/s" in words
    assert "tokens/s" not in resolved(now, WAS)[1]


DEAD = replace(WAS, rdma=tuple(replace(port, state="DOWN") for port in WAS.rdma))


@pytest.mark.parametrize(
    ("node", "spec", "is_off"),
    [
        pytest.param(WAS, NODE, False, id="all is well"),
        pytest.param(replace(WAS, rdma=(WAS.rdma[0], *DEAD.rdma[1:])), NODE, False, id="one port is left"),
        pytest.param(DEAD, NODE, True, id="no port has a link"),
        pytest.param(replace(WAS, rdma=()), NODE, True, id="no card"),
        pytest.param(DEAD, replace(NODE, transport="rdma"), False, id="RDMA is what the operator wants"),
        pytest.param(DEAD, replace(NODE, overrides=Overrides(ib_hca="=mlx5_0")), False, id="pinned ports"),
        pytest.param(DEAD, replace(NODE, overrides=Overrides(env=(("NCCL_NET", "IB"),))), False, id="by hand"),
    ],
)
def test_a_node_without_any_port_is_off_the_rails_where_a_plan_could_do_without(
    node: Topology, spec: NodeSpec, is_off: bool, request_: StagingRequest
) -> None:
    assert off_the_rails(request_, Machine(spec, node)) is is_off
    assert not off_the_rails(replace(request_, network=NodeNetwork(transport=Transport.TCP)), Machine(spec, node))


def test_what_is_pinned_stays_and_what_is_gone_is_not_guessed(request_: StagingRequest) -> None:
    pinned = replace(NODE, overrides=Overrides(gid_index=3))
    assert resolved(request_, shifted(WAS, 99), pinned)[1] == ""
    by_hand = replace(NODE, overrides=Overrides(env=(("NCCL_IB_GID_INDEX", "3"),)))
    assert resolved(request_, shifted(WAS, 99), by_hand)[1] == ""
    assert resolved(request_, replace(WAS, interfaces=(), rdma=()))[1] == ""
    strange = replace(request_, launch_script="#!/bin/sh\nexec true\n")
    assert resolved(strange, shifted(WAS, 99)) == (strange, "")


def test_a_script_that_sets_a_variable_twice_is_left_alone() -> None:
    assert exported_anew("export A=1\nexport A=1\n", {"A": "1"}, {"A": "2"}) is None
    assert exported_anew("export A='x y'\n", {"A": "x y"}, {"A": "$z"}) == "export A='$z'\n"
    assert exported_anew("true\n", {}, {"A": "2"}) is None


@pytest.mark.parametrize("area", RAILS)
def test_what_was_not_read_has_not_moved_and_is_not_gone(request_: StagingRequest, area: Area) -> None:
    bare = replace(WAS, rdma=(), interfaces=(), gpus=(), unread=(NotRead(area, "/sys/x", "ETIMEDOUT"),))
    assert moved(request_, Machine(NODE, bare)) == Moved(request_.network, "")
    assert not off_the_rails(request_, Machine(NODE, bare))
    lacking = tuple(NotRead(one, "/sys/x", "ETIMEDOUT") for one in (area, Area.GPUS, Area.RDMA))
    assert list(gone(request_, replace(bare, unread=lacking))) == []


HERE = topology()
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
    first, *rest = HERE.rdma
    return replace(HERE, rdma=(replace(first, **changes), *rest))


@pytest.mark.parametrize(
    ("now", "wanted"),
    [
        pytest.param(HERE, [], id="nothing changed"),
        pytest.param(
            replace(HERE, gpus=(*HERE.gpus[:7], replace(HERE.gpus[7], lost="GPU is lost"))),
            ["GPU 7"],
            id="a GPU is lost",
        ),
        pytest.param(replace(HERE, gpus=HERE.gpus[1:]), ["GPU 0"], id="a GPU is gone"),
        pytest.param(replace(HERE, rdma=HERE.rdma[1:]), ["RDMA port mlx5_0:1"], id="a card is gone"),
        pytest.param(with_port(state="DOWN"), ["RDMA port mlx5_0:1 (DOWN)"], id="a cable"),
        pytest.param(shifted(HERE, 1, by=1), ["a RoCE v2 GID at index 3 of mlx5_0:1 (it has "], id="the GIDs moved"),
        pytest.param(replace(HERE, gpus=(), nvml_error="timeout"), [], id="NVML does not answer"),
    ],
)
def test_what_is_gone(now: Topology, wanted: list[str]) -> None:
    told = list(gone(REQUEST, now))
    assert len(told) == len(wanted)
    assert all(words.startswith(start) for words, start in zip(told, wanted, strict=True))


def test_a_plan_over_tcp_needs_no_port() -> None:
    assert list(gone(replace(REQUEST, network=NodeNetwork(transport=Transport.TCP)), replace(HERE, rdma=()))) == []
    assert list(gone(replace(REQUEST, gpus=(), network=NodeNetwork()), replace(HERE, rdma=()))) == []
