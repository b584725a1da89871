"""The rendered /sys, read the way NCCL reads it (NCCL src/graph/xml.cc)."""

from __future__ import annotations

import posixpath
from collections.abc import Callable

import pytest

from l40s_lab.hardware import infiniband, sysfs
from l40s_lab.hardware.machine import NetworkInterface, NodeMachine
from l40s_lab.node.tree import FileTree
from orchestrator.model.snapshot import Snapshot
from orchestrator.topology.build import build

Make = Callable[..., NodeMachine]


def as_snapshot(tree: FileTree) -> Snapshot:
    return Snapshot(
        node="n",
        taken_at=0.0,
        files={f"/sys{path}": content.decode("latin-1") for path, content in tree.files.items()},
        links={f"/sys{path}": target for path, target in tree.links.items()},
    )


@pytest.mark.parametrize("name", ["right", "wrong"])
@pytest.mark.parametrize("live", [True, False])
def test_every_link_leads_somewhere(node: Make, name: str, live: bool) -> None:
    tree = sysfs.render(node(name), live_network=live)
    known = {*tree.files, *tree.folders, *tree.borrowed, *tree.links, *tree.opaque}
    folders = {"/"}
    for path in known:
        above = path
        while above not in folders:
            folders.add(above)
            above = posixpath.dirname(above)
    for path, target in tree.links.items():
        place = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        assert place in folders or place in ("/bus/pci",), f"{path} -> {target}"


def test_the_topology_read_from_it_is_the_one_that_was_described(node: Make) -> None:
    topology = build(as_snapshot(sysfs.render(node(), live_network=False)))
    assert len(topology.switches) == 2
    ports = {port.name: port for port in topology.rdma}
    assert set(ports) == {f"mlx5_{index}:1" for index in range(4)} | {"mlx5_bond_0:1"}
    assert ports["mlx5_bond_0:1"].switch == ""
    assert {port.switch for port in ports.values()} - {""} == {switch.key for switch in topology.switches}
    assert ports["mlx5_0:1"].gids[3].ipv4 == "192.168.101.10"
    assert ports["mlx5_0:1"].gids[3].type == "RoCE v2"


def test_nccls_way_to_a_device_by_its_bus_ends_at_the_device(node: Make) -> None:
    snapshot = as_snapshot(sysfs.render(node()))
    path = snapshot.realpath("/sys/class/pci_bus/0000:18/../../0000:18:00.0")
    assert path == snapshot.realpath("/sys/bus/pci/devices/0000:18:00.0")
    assert snapshot.text(f"{path}/class") == "0x030200"
    assert snapshot.text(f"{path}/max_link_speed") == "16.0 GT/s PCIe"


def test_an_empty_gid_slot_has_a_gid_of_zeros_and_a_type_that_cannot_be_read(node: Make) -> None:
    live, written = (sysfs.render(node(), live_network=live) for live in (True, False))
    port = next(path for path in live.files if path.endswith("mlx5_0/ports/1/state")).removesuffix("/state")
    assert live.files[f"{port}/gids/255"] == b"0000:" * 7 + b"0000\n"
    assert f"{port}/gid_attrs/types/255" in live.einval
    assert f"{port}/gid_attrs/types/255" not in live.files
    assert not written.einval, "without an overlay it is absent"


@pytest.mark.parametrize(
    ("interface", "kinds"),
    [
        (NetworkInterface(name="a", mac="b8:3f:d2:00:00:01", mtu=9000, speed_mbps=1, ipv4=("10.0.0.1/24",)), 4),
        (NetworkInterface(name="a", mac="b8:3f:d2:00:00:01", mtu=9000, speed_mbps=1), 2),
        (
            NetworkInterface(
                name="a", mac="b8:3f:d2:00:00:01", mtu=9000, speed_mbps=1, ipv4=("10.0.0.1/24",), enabled=False
            ),
            2,
        ),
    ],
)
def test_a_gid_table_holds_link_local_then_addresses_v1_before_v2(interface: NetworkInterface, kinds: int) -> None:
    table = infiniband.gid_table(interface)
    assert [kind for _, kind in table] == (["IB/RoCE v1", "RoCE v2"] * 2)[:kinds]
    assert table[0][0] == "fe80:0000:0000:0000:ba3f:d2ff:fe00:0001"


def test_nodes_have_the_same_hardware_and_numbers_of_their_own(node: Make) -> None:
    first, second = (sysfs.render(node(index=index), live_network=False) for index in (0, 1))
    assert first.files.keys() == second.files.keys()
    different = {posixpath.basename(path) for path in first.files if first.files[path] != second.files[path]}
    assert different == {"address", "node_guid", "sys_image_guid", "node_desc", "perm_hwaddr", "0", "1", "2", "3"}


def test_a_port_that_is_down_says_so_in_every_place(node: Make) -> None:
    snapshot = as_snapshot(sysfs.render(node("wrong"), live_network=False))
    ib, net = "/sys/class/infiniband/mlx5_1/ports/1", "/sys/class/net/ens5f1np1"
    assert (snapshot.text(f"{ib}/state"), snapshot.text(f"{ib}/phys_state")) == ("1: DOWN", "3: Disabled")
    assert (snapshot.text(f"{net}/operstate"), snapshot.text(f"{net}/speed")) == ("down", "-1")
    assert not snapshot.exists(f"{net}/carrier")
