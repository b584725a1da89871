"""The rendered PCIe tree and /sys, read the way NCCL reads it (NCCL src/graph/xml.cc)."""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from l40s_lab.hardware import infiniband, pci, sysfs
from l40s_lab.hardware.machine import Gpu, Machine, NetworkInterface, NodeMachine, PciePort, RootComplex
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
    ("addresses", "enabled", "kinds"), [(("10.0.0.1/24",), True, 4), ((), True, 2), (("10.0.0.1/24",), False, 2)]
)
def test_a_gid_table_holds_link_local_then_addresses_v1_before_v2(
    addresses: tuple[str, ...], enabled: bool, kinds: int
) -> None:
    port = NetworkInterface(name="a", mac="b8:3f:d2:00:00:01", mtu=9000, speed_mbps=1, ipv4=addresses, enabled=enabled)
    table = infiniband.gid_table(port)
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


def test_bus_numbers_are_given_depth_first_and_never_twice(node: Make) -> None:
    layout = pci.lay_out(node().machine)
    addresses = [function.address for function in layout.functions]
    assert len(set(addresses)) == len(addresses)
    assert [one.address for one in layout.functions if isinstance(one.card, Gpu)] == [
        f"0000:{bus:02x}:00.0" for bus in (0x18, 0x19, 0x1A, 0x1B, 0x9A, 0x9B, 0x9C, 0x9D)
    ]
    for function in layout.functions:
        above = next((one for one in layout.functions if one.path == function.path.rpartition("/")[0]), None)
        if above is not None:
            assert above.buses is not None
            bus = int(function.address[5:7], 16)
            assert above.buses[1] == bus
            assert above.buses[0] < bus <= above.buses[2]


def test_a_slot_says_what_is_behind_it(node: Make) -> None:
    slots = {slot.name: slot for slot in pci.lay_out(node("wrong").machine).slots}
    assert slots["17"].address == "0000:b8:00"
    assert slots["17"].now == 4, "the card in the wrong place"
    assert slots["15"].now == 0, "its own slot is empty"


def test_configuration_space_holds_ids_buses_and_capabilities(node: Make) -> None:
    layout = pci.lay_out(node().machine)
    upstream = next(one for one in layout.functions if one.kind == pci.UPSTREAM)
    space = pci.config_space(upstream)
    assert len(space) == 4096
    assert struct.unpack_from("<HH", space, 0) == (0x1000, 0xC010)
    assert space[0x0E] & 0x7F == 1
    assert tuple(space[0x18:0x1B]) == upstream.buses
    assert space[space[0x34]] == 0x10
    card = next(one for one in layout.functions if one.port)
    assert struct.unpack_from("<H", pci.config_space(card), 0x40 + 8)[0] >> 12 & 7 == 5, "MaxReadReq 4096"


def capability(space: bytes, wanted: int) -> int:
    at = 0x100
    while at:
        (header,) = struct.unpack_from("<I", space, at)
        if header & 0xFFFF == wanted:
            return at
        at = header >> 20
    return 0


def test_acs_redirects_show_in_the_control_word_of_the_port_only() -> None:
    port = PciePort(device=1, card=Gpu())
    for acs, control in ((False, 0), (True, 0x1D)):
        root = RootComplex(bus=0x10, numa=0, ports=(replace(port, acs=acs),))
        bridge, gpu = pci.lay_out(Machine(primary="x", roots=(root,))).functions
        at = capability(pci.config_space(bridge), 0x000D)
        assert struct.unpack_from("<H", pci.config_space(bridge), at + 6) == (control,)
        assert capability(pci.config_space(gpu), 0x000D) == 0
