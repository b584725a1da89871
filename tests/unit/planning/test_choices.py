"""Which interface, which RDMA ports, which GID index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.support.reference_cluster import gang, node, rdma_port, topologies, topology

from orchestrator.model.inventory import GangSpec, Overrides
from orchestrator.model.topology import RAILS, Area, Interface, NotRead, RdmaPort, Topology
from orchestrator.planning.choices import (
    RdmaChoice,
    data_network,
    decide,
    rdma_choice,
    tcp_choices,
    two_ports_of_a_card,
)
from orchestrator.protocol.errors import InputError, NodeError
from orchestrator.topology.gpus import Machine
from orchestrator.topology.network import TcpChoice, gid_index, networks_met, usable_rails

BOND = TcpChoice("bond0", "10.0.0.11", "")


def only(spec: GangSpec, facts: dict[str, Topology]) -> TcpChoice:
    return tcp_choices(spec, facts)["node0"]


def chosen_ports(spec: GangSpec, facts: Mapping[str, Topology]) -> dict[str, RdmaChoice]:
    tcp = tcp_choices(spec, facts)
    return {one.name: rdma_choice(Machine(one, facts[one.name]), tcp[one.name]) for one in spec.nodes}


def test_an_rdma_ports_own_interface_is_not_taken_while_there_is_another() -> None:
    bare = replace(
        topology(),
        interfaces=(
            Interface(name="eth0", operstate="up", ipv4=("10.0.0.11/24",), physical=True, speed_mbps=1000),
            Interface(name="rdma0", operstate="up", ipv4=("10.1.0.11/24",), physical=True, speed_mbps=100000),
        ),
    )
    choice = only(gang(1), {"node0": bare})
    assert choice.interface == "eth0"
    assert "eth0 is no rail" in choice.reason


def test_docker_loopback_and_downed_interfaces_are_no_candidates() -> None:
    facts = replace(
        topology(),
        interfaces=(
            Interface(name="lo", operstate="unknown", carrier=True, ipv4=("127.0.0.1/8",)),
            Interface(name="docker0", operstate="up", ipv4=("172.17.0.1/16",)),
            Interface(name="eth0", operstate="down", ipv4=("10.0.0.11/24",)),
            Interface(name="eth1", operstate="up", ipv4=("10.9.0.11/24",), physical=True),
        ),
    )
    assert only(gang(1), {"node0": facts}).interface == "eth1"


RDMA1 = TcpChoice("rdma1", "10.2.0.11", "override: l40s_socket_ifname in the inventory")


@pytest.mark.parametrize(
    ("settings", "taken"),
    [
        ({"address": "10.1.0.11"}, TcpChoice("rdma0", "10.1.0.11", "rdma0 has l40s_address 10.1.0.11")),
        ({"overrides": Overrides(socket_ifname="rdma1")}, RDMA1),
        ({"overrides": Overrides(socket_ifname="=rdma1")}, RDMA1),
    ],
)
def test_what_the_inventory_names_decides(settings: dict[str, Any], taken: TcpChoice) -> None:
    spec = gang(1, **settings)
    assert only(spec, topologies(spec)) == taken


@pytest.mark.parametrize(
    ("settings", "says", "fix"),
    [
        ({"address": "10.7.7.7"}, "bond0 10.0.0.11", "set l40s_address"),
        ({"address": "fd00::11"}, "is IPv6, which is not supported", "IPv4"),
        ({"overrides": Overrides(socket_ifname="bond9")}, "'bond9' is not an interface", "one of these"),
        ({"overrides": Overrides(socket_ifname="^docker")}, "Gloo takes one", "bond0 10.0.0.11"),
        ({"overrides": Overrides(socket_ifname="bond0,rdma1")}, "Gloo takes one", "bond0 10.0.0.11"),
    ],
)
def test_what_it_names_and_is_not_there_is_refused(settings: dict[str, Any], says: str, fix: str) -> None:
    spec = gang(1, **settings)
    with pytest.raises(InputError) as caught:
        only(spec, topologies(spec))
    assert says in caught.value.what and fix in caught.value.fix
    name = "l40s_address" if "address" in settings else "l40s_socket_ifname"
    assert caught.value.where == f"inventory: node0: {name}"


def test_loopback_addresses_need_not_be_listed() -> None:
    spec = gang(1, address="127.0.5.2")
    facts = Topology(node="node0", interfaces=topology().interfaces[:1])
    assert only(spec, {"node0": facts}).interface == "lo"


def test_nodes_without_a_common_network_are_refused() -> None:
    facts = topologies(gang(2))
    facts["node1"] = replace(
        facts["node1"], interfaces=(Interface(name="eth0", operstate="up", ipv4=("192.168.1.5/24",)),)
    )
    with pytest.raises(InputError, match="network that all nodes of the gang share"):
        tcp_choices(gang(2), facts)


def test_without_facts_the_inventory_s_addresses_serve() -> None:
    assert (only(gang(1), {}).interface, only(gang(1), {}).address) == ("", "10.0.0.11")
    assert only(gang(1, address="10.0.0.99"), {}).address == "10.0.0.99"
    with pytest.raises(InputError, match="is IPv6"):
        only(gang(1, address="fd00::11"), {})


def test_ports_are_ordered_as_people_count() -> None:
    facts = topology(rdma=("mlx5_10", "mlx5_2", "mlx5_1", "mlx5_11"))
    assert [rail.port.device for rail in usable_rails(facts, "bond0")] == ["mlx5_1", "mlx5_2", "mlx5_10", "mlx5_11"]


def test_ports_that_are_down_carry_tcp_or_have_no_address_are_not_usable() -> None:
    facts = topology()
    ports = list(facts.rdma)
    ports[0] = replace(ports[0], state="DOWN")
    ports[1] = replace(ports[1], netdev="bond0")
    ports[2] = replace(ports[2], gids=ports[2].gids[:2])
    assert [rail.port.device for rail in usable_rails(replace(facts, rdma=tuple(ports)), "bond0")] == ["mlx5_3"]


def test_where_no_port_is_near_a_gpu_the_far_ones_serve() -> None:
    facts = topology()
    far = replace(facts, rdma=tuple(replace(port, switch="", key=f"/sys/x/{port.device}") for port in facts.rdma))
    choice = rdma_choice(Machine(node(), far), BOND)
    assert len(choice.ports) == 4
    assert "none is under a GPU's switch" in choice.reason


def single_card() -> Topology:
    """A single RoCE port, which also carries TCP."""
    facts = topology(rdma=("mlx5_0",), bond="eth9")
    port = replace(facts.rdma[0], netdev="eth9", gids=tuple(replace(g, netdev="eth9") for g in facts.rdma[0].gids))
    eth9 = Interface(name="eth9", operstate="up", carrier=True, ipv4=("10.1.0.11/24",), physical=True)
    return replace(facts, rdma=(port,), interfaces=(eth9,))


def test_a_single_card_carries_tcp_unless_the_operator_says_both() -> None:
    tcp = TcpChoice("eth9", "10.1.0.11", "")
    choice = rdma_choice(Machine(node(), single_card()), tcp)
    assert choice.ports == ()
    assert "mlx5_0:1 carries TCP" in choice.reason
    both = rdma_choice(Machine(node(overrides=Overrides(ib_hca="=mlx5_0")), single_card()), tcp)
    assert [port.name for port in both.ports] == ["mlx5_0:1"]
    assert both.gid.index == 3


@pytest.mark.parametrize(
    ("pin", "devices"),
    [
        ("=mlx5_1", ["mlx5_1"]),
        ("mlx5_1", ["mlx5_1", "mlx5_10"]),
        ("=mlx5_1:1,mlx5_2:1", ["mlx5_1", "mlx5_2"]),
        ("^mlx5_1,mlx5_bond", ["mlx5_2", "mlx5_3"]),
        ("^=mlx5_1", ["mlx5_10", "mlx5_2", "mlx5_3", "mlx5_bond_0", "mlx5_bond_1"]),
    ],
)
def test_a_pin_means_what_nccl_makes_of_it(pin: str, devices: list[str]) -> None:
    facts = topology(rdma=("mlx5_1", "mlx5_10", "mlx5_2", "mlx5_3"))
    choice = rdma_choice(Machine(node(overrides=Overrides(ib_hca=pin)), facts), BOND)
    assert [port.device for port in choice.ports] == devices


@pytest.mark.parametrize("pin", ["=mlx5_9", "=mlx5_0:2"])
def test_a_pin_that_fits_no_port_is_refused(pin: str) -> None:
    with pytest.raises(InputError) as caught:
        rdma_choice(Machine(node(overrides=Overrides(ib_hca=pin)), topology()), BOND)
    assert "mlx5_0:1 ACTIVE" in caught.value.what
    assert caught.value.where == "inventory: node0: l40s_ib_hca"


def test_where_no_index_serves_all_ports_one_network_may() -> None:
    """NCCL 2.21 and newer picks each port's GID by NCCL_IB_ADDR_RANGE."""
    facts, other = topology(), topology(gid_index=5)
    mixed = replace(facts, rdma=(facts.rdma[0], other.rdma[1], *facts.rdma[2:]))
    choice = rdma_choice(Machine(node(), mixed), BOND)
    assert choice.range == "10.0.0.0/13"  # 10.1.0.11 to 10.4.0.11
    assert rdma_choice(Machine(node(), facts), BOND).range == ""
    second = replace(mixed.rdma[0].gids[3], index=9, gid=mixed.rdma[0].gids[3].gid[:-9] + "0a05:0001")
    twice = replace(mixed.rdma[0], gids=(*mixed.rdma[0].gids, second))
    beside = replace(mixed, rdma=(twice, *mixed.rdma[1:]))
    assert rdma_choice(Machine(node(), beside), BOND).range == ""  # 10.5.0.1 of the same port is in it too


def with_networks_of_its_own(facts: Topology, number: int) -> Topology:
    """Each rail's interface has another address before the common one, in a network that no other node has."""
    ports, interfaces = [], {one.name: one for one in facts.interfaces}
    for place, port in enumerate(facts.rdma):
        own = f"10.{100 + number}.{place}.9"
        first = [gid for gid in rdma_port("x", "", port.netdev, address=own, gid_index=3).gids if gid.ipv4]
        if port.netdev.startswith("rdma"):
            ports.append(replace(port, gids=(*port.gids[:2], *first, *port.gids[2:])))
            interfaces[port.netdev] = replace(
                interfaces[port.netdev], ipv4=(f"{own}/24", *interfaces[port.netdev].ipv4)
            )
    return replace(facts, rdma=tuple(ports), interfaces=tuple(interfaces.values()))


def test_the_gid_in_the_other_nodes_network_is_taken() -> None:
    spec = node()
    known = {f"node{n}": with_networks_of_its_own(topology(f"node{n}", n, gid_index=5), n) for n in range(3)}
    met = networks_met(known.values())
    assert rdma_choice(Machine(spec, known["node0"]), BOND).gid.index == 3, "alone, the lowest one"
    assert rdma_choice(Machine(spec, known["node0"]), BOND, met).gid.index == 5
    first = known["node0"].rdma[0]
    assert gid_index(first, known["node0"], met).reason == "GID 5 is RoCE v2, 10.1.0.11 on rdma0"
    moved = replace(first, gids=tuple(replace(gid, index=gid.index + 2) for gid in first.gids))
    mixed = replace(known["node0"], rdma=(moved, *known["node0"].rdma[1:]))
    chosen = rdma_choice(Machine(spec, mixed), BOND, met)
    assert (chosen.gid.index, chosen.range) == (None, "10.0.0.0/13"), "index 5 is the first port's own network"


def test_ports_without_a_pci_function_are_cards_of_their_own() -> None:
    """Software RoCE: two devices are not two ports of one card."""
    soft = tuple(replace(port, key="", address="", switch="") for port in topology().rdma[:2])
    assert not two_ports_of_a_card(RdmaChoice(soft, ""))
    assert two_ports_of_a_card(
        RdmaChoice(tuple(replace(port, key=f"/a/0000:1b:00.{n}") for n, port in enumerate(soft)), "")
    )


def test_every_node_takes_the_same_network() -> None:
    """node1's bond is in another network: the interface that both share is taken, on both."""
    facts = topologies(gang(2))
    odd = tuple(
        replace(one, ipv4=("10.77.0.12/24",)) if one.name == "bond0" else one for one in facts["node1"].interfaces
    )
    choices = tcp_choices(gang(2), facts | {"node1": replace(facts["node1"], interfaces=odd)})
    assert {choice.interface for choice in choices.values()} == {"rdma0"}


def test_a_pinned_index_and_pinned_ports_are_overrides() -> None:
    spec = node(overrides=Overrides(gid_index=7, ib_hca="=mlx5_2"))
    choice = rdma_choice(Machine(spec, topology()), BOND)
    assert (choice.gid.index, choice.gid.reason) == (7, "override: l40s_gid_index in the inventory")
    assert choice.reason == "override: l40s_ib_hca in the inventory"


def without_rdma(port: RdmaPort) -> RdmaPort:
    return replace(port, state="DOWN")


@pytest.mark.parametrize(
    ("transport", "broken", "kind"),
    [("auto", False, "rdma"), ("rdma", False, "rdma"), ("tcp", False, "tcp"), ("auto", True, "tcp")],
)
def test_the_transport_that_is_asked_for_and_possible(transport: str, broken: bool, kind: str) -> None:
    spec = gang(transport=transport)
    facts = topologies(spec)
    if broken:
        facts["node2"] = replace(facts["node2"], rdma=tuple(map(without_rdma, facts["node2"].rdma)))
    decision = decide(spec, chosen_ports(spec, facts))
    assert decision.transport.value == kind
    assert [finding.id for finding in decision.findings] == (["TRANSPORT-TCP"] if kind == "tcp" else [])


def test_one_node_needs_no_transport() -> None:
    assert decide(gang(1), {}).transport.value == "none"


def test_fewer_ports_on_one_node_are_told() -> None:
    spec = gang(2)
    facts = topologies(spec) | {"node1": topology("node1", 1, rdma=("mlx5_0", "mlx5_1"))}
    (uneven,) = decide(spec, chosen_ports(spec, facts)).findings
    assert (uneven.id, uneven.evidence) == ("RDMA-PORTS-UNEVEN", ("node0: 4", "node1: 2"))


def unread(area: Area, path: str = "/sys/x") -> Topology:
    return replace(topology("node1", 1), unread=(NotRead(area, path, "ETIMEDOUT"),))


@pytest.mark.parametrize("area", [Area.INTERFACES, Area.ADDRESSES])
def test_a_node_whose_networks_were_not_read_is_refused_for_that_and_nothing_else(area: Area) -> None:
    bare = replace(unread(area), interfaces=(), rdma=())
    with pytest.raises(NodeError, match=r"could not be read \(/sys/x: ETIMEDOUT\).*not known which address") as told:
        tcp_choices(gang(), topologies(gang()) | {"node1": bare})
    assert (told.value.where, "l40s_socket_ifname" in told.value.fix) == ("node node1", True)
    pinned = gang(address="10.0.0.12", overrides=Overrides(socket_ifname="bond0"))
    assert tcp_choices(pinned, {"node1": bare})["node1"].interface == "bond0"


@pytest.mark.parametrize("area", RAILS)
def test_ports_that_were_not_read_are_no_reason_for_tcp(area: Area) -> None:
    for rdma in ((), topology().rdma[:2]):
        facts = topologies(gang()) | {"node1": replace(unread(area), rdma=rdma)}
        choices = {one.name: rdma_choice(Machine(one, facts[one.name]), BOND) for one in gang().nodes}
        with pytest.raises(NodeError, match="not known which of its RDMA ports can be used"):
            decide(gang(), choices)
        assert decide(gang(transport="tcp"), choices).transport.value == "tcp"
        pinned = {one.name: rdma_choice(Machine(one, facts[one.name]), BOND) for one in gang(overrides=PIN).nodes}
        assert not rdma or decide(gang(overrides=PIN), pinned).transport.value == "rdma"


PIN = Overrides(ib_hca="=mlx5_0:1,mlx5_1:1")


def on_networks(name: str, number: int, *, rail: int = 100_000, shared: bool = True) -> Topology:
    network = "10.1.0" if shared else f"10.{number + 50}.0"
    return Topology(
        node=name,
        interfaces=(
            Interface(name="bond0", operstate="up", speed_mbps=20_000, ipv4=(f"10.0.0.{number}/24",)),
            Interface(name="ens1", operstate="up", speed_mbps=rail, ipv4=(f"{network}.{number}/24",)),
            Interface(name="docker0", operstate="up", speed_mbps=400_000, ipv4=("172.17.0.1/16",)),
            Interface(name="down0", operstate="down", speed_mbps=400_000, ipv4=(f"10.9.0.{number}/24",)),
        ),
    )


@pytest.mark.parametrize(
    ("other", "interface", "network"),
    [
        ({}, "", "10.1.0"),
        ({"rail": 1000}, "", "10.0.0"),  # the slowest end counts
        ({"shared": False}, "", "10.0.0"),  # a network that not all share is none
        ({}, "bond0", "10.0.0"),
    ],
)
def test_the_fastest_network_that_all_share_carries_a_checkpoint(
    other: dict[str, Any], interface: str, network: str
) -> None:
    found = data_network({"a": on_networks("a", 1), "b": on_networks("b", 2, **other)}, interface)
    assert found.addresses == {"a": f"{network}.1", "b": f"{network}.2"}
    assert ("100 Gbit/s" in found.reason) is (network == "10.1.0")


def test_a_network_that_is_down_carries_none() -> None:
    with pytest.raises(InputError, match="no network on down0"):
        data_network({"a": on_networks("a", 1), "b": on_networks("b", 2)}, "down0")
