"""RDMA ports: states, GID tables, net devices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.machine_files import MachineFiles, reference_machine

from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import Gid, Interface, RdmaPort, Topology
from orchestrator.topology.build import build
from orchestrator.topology.network import gid_index, may_be_rails, rails, tcp_interface
from orchestrator.topology.rdma import natural, ports_by_card


def test_a_port_as_sysfs_shows_it() -> None:
    port = build(reference_machine().snapshot()).rdma[0]
    assert (port.device, port.port, port.name) == ("mlx5_0", 1, "mlx5_0:1")
    assert (port.state, port.phys_state, port.rate_gbps, port.link_layer) == ("ACTIVE", "LinkUp", 100.0, "Ethernet")
    assert (port.netdev, port.firmware, port.board) == ("ens2f0np0", "22.41.1000", "MT_0000000359")
    assert [(gid.index, gid.type, gid.ipv4) for gid in port.gids] == [
        (0, "IB/RoCE v1", None), (1, "RoCE v2", None), (2, "IB/RoCE v1", "10.1.0.11"), (3, "RoCE v2", "10.1.0.11"),
    ]  # fmt: skip


def test_ports_come_in_the_order_people_count() -> None:
    machine = MachineFiles()
    for number in (10, 2, 1, 0):
        (card,) = machine.nic(machine.root_port(0x10 + 2 * number), 0x11 + 2 * number, [f"eth{number}"])
        machine.rdma(f"mlx5_{number}", card, f"eth{number}")
    assert [port.device for port in build(machine.snapshot()).rdma] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_10"]
    assert sorted(["mlx5_bond_0", "mlx5_9"], key=natural) == ["mlx5_9", "mlx5_bond_0"]


def test_the_ports_of_a_card_are_one_card() -> None:
    cards = ports_by_card(build(reference_machine().snapshot()).rdma)
    assert [tuple(port.device for port in ports) for ports in cards.values()] == [
        ("mlx5_0", "mlx5_1"), ("mlx5_2", "mlx5_3"), ("mlx5_bond_0",),
    ]  # fmt: skip


def test_empty_and_broken_slots_of_a_gid_table_are_left_out() -> None:
    machine = MachineFiles()
    (card,) = machine.nic(machine.root_port(0x10), 0x11, ["eth0"])
    port = machine.rdma("mlx5_0", card, "eth0", ipv4="10.1.0.1/24") + "/ports/1"
    machine.write(f"{port}/gids", {"4": ":".join(["0000"] * 8), "5": "cut off", "x": "nonsense"})
    machine.errors[f"{port}/gid_attrs/types/3"] = "EINVAL"
    del machine.files[f"{port}/gid_attrs/types/3"]
    (found,) = build(machine.snapshot()).rdma
    assert [(gid.index, gid.type) for gid in found.gids] == [
        (0, "IB/RoCE v1"), (1, "RoCE v2"), (2, "IB/RoCE v1"), (3, ""),
    ]  # fmt: skip


def test_a_net_device_is_found_without_a_gid_table() -> None:
    machine = MachineFiles()
    (card,) = machine.nic(machine.root_port(0x10), 0x11, ["eth0"])
    folder = machine.rdma("mlx4_0", card, "eth0")
    machine.files = {path: text for path, text in machine.files.items() if "/gid" not in path}
    second = machine.write(f"{folder}/ports/2", {"state": "1: DOWN"})
    machine.interface("eth1", card)
    machine.write(f"{card}/net/eth0", {"dev_port": 0})
    machine.write(f"{card}/net/eth1", {"dev_port": 1})
    assert second.endswith("/ports/2")
    assert [(port.name, port.netdev) for port in build(machine.snapshot()).rdma] == [
        ("mlx4_0:1", "eth0"), ("mlx4_0:2", "eth1"),
    ]  # fmt: skip


def test_software_roce_has_no_card() -> None:
    folder = "/sys/devices/virtual/infiniband/rxe0"
    snapshot = Snapshot(
        node="n",
        taken_at=0.0,
        files={f"{folder}/ports/1/state": "4: ACTIVE\n", f"{folder}/ports/1/link_layer": "Ethernet\n"},
        links={"/sys/class/infiniband/rxe0": "../../devices/virtual/infiniband/rxe0"},
    )
    (port,) = build(snapshot).rdma
    assert (port.key, port.address, port.switch, port.active) == ("", "", "", True)


MAPPED = "0000:0000:0000:0000:0000:ffff:0a01:000b"
LOCAL = "fe80:0000:0000:0000:0000:0000:0000:0001"


def cluster(nodes: int = 4, *, right: bool = True) -> dict[str, Topology]:
    return {
        f"node{number}": build(reference_machine(f"node{number}", number, right=right).snapshot())
        for number in range(nodes)
    }


def test_the_bond_carries_tcp_though_every_rail_is_shared_too() -> None:
    choices = tcp_interface(cluster())
    assert {name: (choice.interface, choice.address) for name, choice in choices.items()} == {
        f"node{number}": ("bond0", f"10.0.0.{11 + number}") for number in range(4)
    }
    assert choices["node0"].reason == "bond0 is a bond in 10.0.0.0/24, which all 4 nodes share; 4 other shared networks"


def test_the_wrong_cluster_has_one_port_left_for_tcp() -> None:
    choices = tcp_interface(cluster(right=False))
    assert {choice.interface for choice in choices.values()} == {"ens9f0np0"}
    assert all(rails(topology) == () for topology in cluster(right=False).values())


def test_one_network_is_chosen_for_all_nodes() -> None:
    nodes = cluster(2)
    odd = replace(
        nodes["node1"],
        interfaces=tuple(
            replace(one, ipv4=("10.9.0.12/24",)) if one.name == "bond0" else one for one in nodes["node1"].interfaces
        ),
    )
    choices = tcp_interface({"node0": nodes["node0"], "node1": odd})
    assert {choice.interface for choice in choices.values()} == {"ens2f0np0"}
    assert "an RDMA rail, the only network there is" in choices["node0"].reason


def plain(name: str, *ipv4: str, up: bool = True, **changes: object) -> Interface:
    state = {"operstate": "up", "carrier": True} if up else {"operstate": "down", "carrier": False}
    return replace(Interface(name=name, ipv4=ipv4, physical=True), **state, **changes)  # type: ignore[arg-type]


def node(*interfaces: Interface) -> Topology:
    return Topology(node="n", interfaces=interfaces)


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        # a container bridge has the same address everywhere
        ([plain("eth0", "10.0.0.1/24"), plain("mybridge", "172.30.0.1/16")],
         [plain("eth0", "10.0.0.2/24"), plain("mybridge", "172.30.0.1/16")], "eth0"),
        ([plain("docker0", "172.17.0.1/16")], [plain("docker0", "172.17.0.2/16")], None),
        ([plain("lo", "127.0.0.1/8")], [plain("lo", "127.0.0.2/8")], None),
        ([plain("eth0", "169.254.1.1/16")], [plain("eth0", "169.254.1.2/16")], None),
        ([plain("eth0", "10.0.0.1/24", up=False)], [plain("eth0", "10.0.0.2/24")], None),
        # faster wins; of bond and port, the bond
        ([plain("eth0", "10.0.0.1/24", speed_mbps=1000), plain("eth1", "10.1.0.1/24", speed_mbps=100000)],
         [plain("eth0", "10.0.0.2/24", speed_mbps=1000), plain("eth1", "10.1.0.2/24", speed_mbps=100000)], "eth1"),
        ([plain("eth1", "10.1.0.1/24", speed_mbps=400000), plain("bond1", "10.0.0.1/24", slaves=("a", "b"))],
         [plain("eth1", "10.1.0.2/24", speed_mbps=400000), plain("bond1", "10.0.0.2/24", slaves=("a", "b"))], "bond1"),
        # names may differ between nodes, the network decides
        ([plain("eno1", "10.0.0.1/24")], [plain("enp1s0", "10.0.0.2/24")], "eno1"),
        ([plain("eth0", "10.0.0.1/24")], [plain("eth0", "10.0.1.2/24")], None),
        ([], [plain("eth0", "10.0.1.2/24")], None),
    ],
)  # fmt: skip
def test_tcp_side_of_two_nodes(first: list[Interface], second: list[Interface], chosen: str | None) -> None:
    choices = tcp_interface({"a": node(*first), "b": node(*second)})
    assert (choices["a"].interface if choices else None) == chosen
    assert set(choices) in ({"a", "b"}, set())


def test_no_nodes_have_no_tcp_side() -> None:
    assert tcp_interface({}) == {}


def test_rails_of_a_right_node_are_the_ports_under_its_switches() -> None:
    found = rails(build(reference_machine(number=2).snapshot()))
    assert [(rail.port.name, rail.address, rail.near) for rail in found] == [
        (f"mlx5_{rail}:1", f"10.{rail + 1}.0.13", True) for rail in range(4)
    ]
    assert {rail.gid.index for rail in found} == {3}


def with_bonds(*near: str, switch: bool = True, main: str = "bond0", speed: int = 50000) -> dict[str, Topology]:
    """Three nodes; each of 4 GPUs is behind a switch with the RDMA card that a word names: bond or plain (mlx5_bond_N
    over bondN, or two devices). main: the interface with the first network, away from the GPUs; '' for none."""
    made = {}
    for number in range(3):
        machine = MachineFiles(f"node{number}")
        for place, kind in enumerate(near, 1):
            bus = 0x10 * place
            upper = machine.switch(machine.root_port(bus), bus + 1) if switch else ""
            slots = [
                machine.downstream(upper, bus + 2, slot) if switch else machine.root_port(bus, 2 + slot)
                for slot in (0, 4)
            ]
            machine.gpu(slots[0], bus + 3)
            names = [f"p{place}a", f"p{place}b"]
            ports = list(zip(names, machine.nic(slots[1], bus + 4, names), strict=True))
            if kind == "bond":
                machine.bond(f"bond{place}", names, speed=400000)
                ports = [(f"bond{place}", ports[0][1])]
            for index, (name, folder) in enumerate(ports):
                address = f"10.{place}.{index}.{number + 1}/24"
                machine.address(name, address)
                device = f"mlx5_bond_{place}" if kind == "bond" else f"mlx5_{2 * place + index}"
                machine.rdma(device, folder, name, ipv4=address)
        if main:
            cards = machine.nic(machine.root_port(0xE0), 0xE1, ["m0", "m1"])
            if main == "bond0":
                machine.bond(main, ["m0", "m1"], speed=speed)
                machine.rdma("mlx5_bond_0", cards[0], main, ipv4=f"10.0.0.{number + 1}")
            machine.address(main, f"10.0.0.{number + 1}/24")
        made[machine.node] = build(machine.snapshot())
    return made


@pytest.mark.parametrize(
    ("near", "options", "tcp", "chosen"),
    [
        (["bond"] * 4, {}, "bond0", ["mlx5_bond_1", "mlx5_bond_2", "mlx5_bond_3", "mlx5_bond_4"]),
        (["bond"] * 4, {"main": "m0"}, "m0", ["mlx5_bond_1", "mlx5_bond_2", "mlx5_bond_3", "mlx5_bond_4"]),
        (["bond", "plain"], {}, "bond0", ["mlx5_4", "mlx5_5", "mlx5_bond_1"]),
        (["bond", "plain"], {"main": "m0"}, "m0", ["mlx5_4", "mlx5_5", "mlx5_bond_1"]),
        (["plain", "plain"], {}, "bond0", ["mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5"]),
        (["bond"], {"main": "m0"}, "m0", ["mlx5_bond_1"]),
        (["bond"], {"main": ""}, "bond1", []),
        # no switch tells: of bonds alone, one that is no RDMA device, else one of them, carries TCP
        (["bond"] * 2, {"switch": False, "main": "m0"}, "m0", ["mlx5_bond_1", "mlx5_bond_2"]),
        (["bond"] * 2, {"switch": False, "speed": 400000}, "bond0", ["mlx5_bond_1", "mlx5_bond_2"]),
        (["plain"], {"switch": False}, "bond0", ["mlx5_2", "mlx5_3"]),
    ],
)  # fmt: skip
def test_the_role_of_a_bond_is_told_by_its_place(
    near: list[str], options: dict[str, object], tcp: str, chosen: list[str]
) -> None:
    nodes = with_bonds(*near, **options)  # type: ignore[arg-type]
    sides = tcp_interface(nodes)
    assert {choice.interface for choice in sides.values()} == {tcp}
    for name, topology in nodes.items():
        assert [rail.port.device for rail in rails(topology, sides[name])] == chosen


def test_a_bond_beside_a_rail_behind_one_switch_is_the_main_card_where_nothing_else_tells() -> None:
    """The card that serves TCP may be behind a GPUs' switch too; a bond alone behind its switch is a rail."""
    topology = with_bonds("bond", "plain", main="m0")["node0"]
    home = next(port.switch for port in topology.rdma if port.device == "mlx5_4")
    moved = tuple(
        replace(port, key=f"{home}/0000:99:00.0/0000:9a:00.0", switch=home) if port.device == "mlx5_bond_1" else port
        for port in topology.rdma
    )
    assert "mlx5_bond_1" in {port.device for port in may_be_rails(topology)}
    assert "mlx5_bond_1" not in {port.device for port in may_be_rails(replace(topology, rdma=moved))}
    assert "mlx5_bond_1" in {port.device for port in may_be_rails(replace(topology, rdma=moved), tcp="m0")}


def test_the_inventory_says_which_bonds_are_rails_where_nothing_tells() -> None:
    nodes = with_bonds("bond", "bond", switch=False)  # all the fastest but the main card's
    asked = {name: ["mlx5_bond_1", "mlx5_bond_2"] for name in nodes}
    assert {choice.interface for choice in tcp_interface(nodes, asked).values()} == {"bond0"}


def test_a_card_on_a_root_port_is_no_rail_while_others_are_near() -> None:
    machine = MachineFiles()
    upstream = machine.switch(machine.root_port(0x15), 0x16)
    machine.gpu(machine.downstream(upstream, 0x17, 0), 0x18)
    (near,) = machine.nic(machine.downstream(upstream, 0x17, 4), 0x19, ["eth0"])
    (far,) = machine.nic(machine.root_port(0x30), 0x31, ["eth1"])
    machine.rdma("mlx5_0", near, "eth0", ipv4="10.1.0.1/24")
    machine.rdma("mlx5_1", far, "eth1", ipv4="10.2.0.1/24")
    assert [rail.port.device for rail in rails(build(machine.snapshot()))] == ["mlx5_0"]
    down = {**machine.files, f"{near}/infiniband/mlx5_0/ports/1/state": "1: DOWN\n"}
    (left,) = rails(build(machine.snapshot(files=down)))
    assert (left.port.device, left.near) == ("mlx5_1", False)


def test_a_rail_below_a_nested_switch_is_near() -> None:
    machine = MachineFiles()
    upper = machine.switch(machine.root_port(0x10), 0x11)
    (card,) = machine.nic(machine.downstream(upper, 0x12, 0), 0x13, ["eth0"])
    lower = machine.switch(machine.downstream(upper, 0x12, 4), 0x20)
    machine.gpu(machine.downstream(lower, 0x21, 0), 0x22)
    machine.rdma("mlx5_0", card, "eth0", ipv4="10.1.0.1/24")
    assert [rail.near for rail in rails(build(machine.snapshot()))] == [True]


def test_infiniband_ports_are_rails_without_a_gid_index() -> None:
    machine = MachineFiles()
    machine.gpu(machine.root_port(0x10), 0x11)
    card = machine.function(machine.root_port(0x20), "0000:21:00.0", ("0x15b3", "0x1021", "0x020700", "0x0001"))
    machine.rdma("mlx5_0", card, "", link_layer="InfiniBand", rate="400 Gb/sec (4X NDR)")
    (rail,) = rails(build(machine.snapshot()))
    assert (rail.gid.index, rail.port.rate_gbps, rail.port.netdev) == (None, 400.0, "")


def port(*gids: Gid, netdev: str = "eth0") -> RdmaPort:
    return RdmaPort(
        device="mlx5_0", port=1, address="", key="", switch="", numa_node=0, netdev=netdev, state="ACTIVE",
        link_layer="Ethernet", gids=gids,
    )  # fmt: skip


def gid(index: int, text: str = MAPPED, kind: str = "RoCE v2", netdev: str = "eth0") -> Gid:
    return Gid(index=index, gid=text, type=kind, netdev=netdev)


ETH0 = plain("eth0", "10.1.0.11/24")


@pytest.mark.parametrize(
    ("gids", "interfaces", "index", "reason"),
    [
        ([gid(0, LOCAL, "IB/RoCE v1"), gid(1, LOCAL), gid(2, kind="IB/RoCE v1"), gid(3)], [ETH0], 3,
         "GID 3 is RoCE v2, 10.1.0.11 on eth0"),
        ([gid(7), gid(9)], [ETH0], 7, "GID 7"),  # a macvlan pod's table
        ([gid(0, LOCAL, "IB/RoCE v1"), gid(1, LOCAL)], [ETH0], None, "none of 2 GIDs is an IPv4 address"),
        ([], [ETH0], None, "none of 0 GIDs"),
        ([gid(2, kind="IB/RoCE v1")], [ETH0], None, "the GIDs of IPv4 addresses are IB/RoCE v1, none is RoCE v2"),
        ([gid(2, kind="")], [ETH0], None, "type unread"),
        ([gid(3)], [plain("eth0", "10.1.0.11/24", up=False)], None, "GID 3: eth0 is down"),
        ([gid(3)], [plain("eth0", "10.9.9.9/24")], None, "GID 3: 10.1.0.11 is not an address of eth0"),
        ([gid(3), gid(5, netdev="eth0.100")], [plain("eth0", "10.9.9.9/24"), plain("eth0.100", "10.1.0.11/24")], 5,
         "on eth0.100"),
        ([gid(3)], [plain("eth0")], 3, "GID 3"),  # its addresses were not read
        ([gid(3)], [], 3, "GID 3"),
        ([gid(3)], [plain("eth0", bond="bond0"), plain("bond0", "10.1.0.11/24", slaves=("eth0",))], 3, "GID 3"),
    ],
)  # fmt: skip
def test_gid_index(gids: list[Gid], interfaces: list[Interface], index: int | None, reason: str) -> None:
    choice = gid_index(port(*gids), node(*interfaces))
    assert choice.index == index
    assert reason in choice.reason
