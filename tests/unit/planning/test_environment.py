"""The network that a node's environment comes to, with the operator's own variables in it."""

from __future__ import annotations

import pytest
from tests.support.reference_cluster import gang
from tests.support.reference_plan import plan_of, staged

from orchestrator.model.inventory import Overrides
from orchestrator.model.plan import Plan
from orchestrator.planning.environment import network
from orchestrator.planning.ports import port_uses
from orchestrator.protocol.planned import NodeNetwork, Transport

RDMA, TCP, NONE = Transport.RDMA, Transport.TCP, Transport.NONE
FAILOVER = {"NCCL_IB_RESILIENCY_PORT_FAILOVER": "1"}


@pytest.mark.parametrize(
    ("env", "planned", "transport"),
    [
        ({"NCCL_NET": "IB"}, RDMA, RDMA),
        ({"NCCL_NET": "ib"}, TCP, RDMA),
        ({"NCCL_NET": "IBext_v8"}, RDMA, RDMA),
        ({"NCCL_NET": "AWS Libfabric", "NCCL_IB_DISABLE": "1"}, TCP, RDMA),
        ({"NCCL_NET": "Socket"}, RDMA, TCP),
        ({"NCCL_NET": "socket"}, RDMA, TCP),
        ({"NCCL_NET": "FastSocket"}, RDMA, TCP),
        ({"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}, RDMA, TCP),
        ({"NCCL_NET": "IB", "NCCL_IB_DISABLE": "0"}, TCP, RDMA),
        ({"NCCL_NET": "IB", "NCCL_IB_DISABLE": "true"}, RDMA, RDMA),
        ({"NCCL_IB_DISABLE": "2"}, RDMA, TCP),
        ({"NCCL_NET": "IB"}, NONE, NONE),
    ],
)
def test_the_transport_is_what_nccl_will_take(env: dict[str, str], planned: Transport, transport: Transport) -> None:
    found = network({**env, "NCCL_IB_HCA": "=mlx5_0:1", **FAILOVER}, planned, "10.0.0.1")
    assert found.transport is transport
    assert (found.ports, found.notice_s > 0) == ((("mlx5_0:1",), True) if transport is RDMA else ((), False))


@pytest.mark.parametrize(
    ("env", "seconds"),
    [
        ({}, 0.0),
        (FAILOVER, 30.06),
        ({**FAILOVER, "NCCL_IB_TIMEOUT": "18", "NCCL_IB_RETRY_CNT": "3"}, 3.2),
        ({**FAILOVER, "NCCL_IB_TIMEOUT": "nonsense"}, 30.06),
    ],
)
def test_nccls_own_time_to_notice_a_dead_port(env: dict[str, str], seconds: float) -> None:
    assert network(env, RDMA, "").notice_s == pytest.approx(seconds, abs=0.1)


def test_everything_else_that_is_named() -> None:
    env = {
        "GLOO_SOCKET_IFNAME": "bond0", "NCCL_SOCKET_IFNAME": "=bond0,eth1", "NCCL_IB_HCA": "^mlx5_1",
        "NCCL_IB_GID_INDEX": "3", "NCCL_IB_ADDR_RANGE": "10.0.0.0/8", "NCCL_IB_TC": "106", "NCCL_IB_SL": "x",
        "NCCL_RAS_ADDR": "127.0.0.1:28028", "NCCL_DEBUG": "WARN",
    }  # fmt: skip
    assert network(env, RDMA, "10.0.0.1") == NodeNetwork(
        transport=RDMA, interface="bond0", sockets=("bond0", "eth1"), address="10.0.0.1", hca="^mlx5_1", gid_index=3,
        gid_range="10.0.0.0/8", traffic_class=106, ras="127.0.0.1:28028", logged=True,
    )  # fmt: skip
    without = network({**env, "NCCL_RAS_ENABLE": "0", "NCCL_SOCKET_IFNAME": "bond"}, RDMA, "")
    assert (without.ras, without.sockets) == ("", ())


def planned(**by_hand: str) -> Plan:
    return plan_of(gang(overrides=Overrides(env=tuple(by_hand.items()))))


@pytest.mark.parametrize("by_hand", [{"NCCL_NET": "Socket"}, {"NCCL_IB_DISABLE": "1"}])
def test_a_plan_that_the_inventorys_variables_turn_to_tcp_says_so_everywhere(by_hand: dict[str, str]) -> None:
    usual, plan = planned(), planned(**by_hand)
    for one, over in ((usual, RDMA), (plan, TCP)):
        (of_gang,), spec = one.gangs, gang(4)
        requests = staged(spec, one)
        assert {node.network.transport for node in of_gang.nodes} == {over}
        assert {request.network.transport for request in requests.values()} == {over}
        assert {bool(request.limits) for request in requests.values()} == {over is RDMA}
        assert any(use.protocol == "udp" for use in port_uses(of_gang)) is (over is RDMA)
        assert any(finding.id == "TRANSPORT-TCP" for finding in one.findings) is (over is TCP)
    assert planned(NCCL_IB_HCA="=mlx5_7:1").gangs[0].nodes[0].network.ports == ("mlx5_7:1",)
