"""PCI functions: addresses of all widths, links as the kernel prints them, one address used twice."""

from __future__ import annotations

import pytest
from tests.support.machine_files import L40S, PEX_GEN4, PEX_GEN5, PEX_GEN5_SUB, PLX, MachineFiles

from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import PathType, PcieLink, Topology
from orchestrator.topology.build import build
from orchestrator.topology.distance import Distances
from orchestrator.topology.pci import (
    bridges_above,
    is_address,
    nearest_function,
    normal_address,
    number,
    pci_devices,
    small_number,
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("00000000:18:00.0", "0000:18:00.0"),
        ("0000:18:00.0", "0000:18:00.0"),
        ("00000001:AF:00.0", "0001:af:00.0"),
        ("10000:00:04.0", "10000:00:04.0"),
        ("FFFFFFFF:FF:FF.0", "ffffffff:ff:ff.0"),
        ("nonsense", "nonsense"),
    ],
)
def test_addresses_are_written_as_sysfs_does(given: str, expected: str) -> None:
    assert normal_address(given) == expected


@pytest.mark.parametrize(
    ("name", "yes"),
    [("0000:18:00.0", True), ("10000:00:04.0", True), ("0000:18:00.8", False), ("pci0000:18", False), ("x", False)],
)
def test_what_is_an_address(name: str, yes: bool) -> None:
    assert is_address(name) is yes


@pytest.mark.parametrize(
    ("speed", "width", "link"),
    [
        ("16.0 GT/s PCIe", "16", PcieLink(speed_gts=16.0, width=16)),
        ("8 GT/s", "8", PcieLink(speed_gts=8.0, width=8)),
        ("2.5 GT/s PCIe", "1", PcieLink(speed_gts=2.5, width=1)),
        ("Unknown", "0", PcieLink()),
        ("Unknown speed", "255", PcieLink()),
        ("", "", PcieLink()),
        ("16.0 GT", "sixteen", PcieLink()),
    ],
)
def test_links(speed: str, width: str, link: PcieLink) -> None:
    folder = "/sys/devices/pci0000:00/0000:00:01.0"
    files = {
        f"{folder}/class": "0x060400\n",
        f"{folder}/current_link_speed": f"{speed}\n",
        f"{folder}/current_link_width": f"{width}\n",
    }
    (device,) = pci_devices(Snapshot(node="n", taken_at=0.0, files=files))
    assert device.link == link


def test_two_functions_may_claim_one_address() -> None:
    machine = MachineFiles()
    for bus in (0x40, 0x80, 0xC0):
        machine.function(machine.root_port(bus, 3), "0000:43:00.0", L40S)
    twins = [device for device in pci_devices(machine.snapshot()) if device.address == "0000:43:00.0"]
    assert len(twins) == len({device.key for device in twins}) == 3
    assert [device.root for device in twins] == ["pci0000:40", "pci0000:80", "pci0000:c0"]


def test_a_domain_of_32_bits() -> None:
    machine = MachineFiles()
    machine.function("/sys/devices/pci10000:00", "10000:00:04.0", L40S)
    machine.function("/sys/devices/pci0000:00", "0000:00:04.0", L40S)
    first, second = pci_devices(machine.snapshot())
    assert (first.address, second.address, second.root, second.parent) == (
        "0000:00:04.0", "10000:00:04.0", "pci10000:00", "",
    )  # fmt: skip


def test_a_link_without_files_is_still_a_function() -> None:
    snapshot = Snapshot(
        node="n",
        taken_at=0.0,
        files={},
        links={"/sys/bus/pci/devices/0000:01:00.0": "../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0"},
    )
    (device,) = pci_devices(snapshot)
    assert (device.address, device.vendor, device.class_code, device.numa_node) == ("0000:01:00.0", 0, 0, -1)


def test_an_interface_of_a_virtual_device_belongs_to_the_function_above() -> None:
    known = {"/sys/devices/pci0000:00/0000:00:03.0": True}
    assert nearest_function("/sys/devices/pci0000:00/0000:00:03.0/virtio2", known) in known
    assert nearest_function("/sys/devices/virtual/net/eth0", known) == ""


def test_numbers_that_are_none() -> None:
    assert number("0x10de", 16) == 0x10DE
    assert number("", 16) == 0 and number("x", otherwise=-1) == -1
    assert number("9" * 5000, otherwise=-1) == -1
    assert [small_number(name) for name in ("7", "٣", "1234567", "-1", "1x")] == [7, -1, -1, -1, -1]


Ids = tuple[str, str, str, str]
ALONE = ("0x1000", "0xc010", "0x060400", "0x0000")


def nested(top: Ids, sub: Ids) -> Topology:
    """A switch with a NIC and two sub-switches, each with one GPU."""
    machine = MachineFiles()
    upper = machine.switch(machine.root_port(0x10), 0x11, ids=top)
    machine.nic(machine.downstream(upper, 0x12, 0), 0x13, ["eth0"])
    for index in range(2):
        bus = 0x20 + 0x10 * index
        lower = machine.switch(machine.downstream(upper, 0x12, 4 + 4 * index), bus, ids=sub)
        machine.gpu(machine.downstream(lower, bus + 1, 0), bus + 2)
    return build(machine.snapshot())


def paths(topology: Topology) -> tuple[PathType, PathType]:
    """(between the GPUs, from the first GPU to the NIC)."""
    nic = next(device for device in topology.pci if device.class_code == 0x020000)
    first, second = topology.gpus
    distances = Distances(topology)
    return distances.path_type(first.key, second.key), distances.path_type(first.key, nic.key)


@pytest.mark.parametrize(
    ("top", "sub", "merged"),
    [
        (PEX_GEN4, PEX_GEN4, True),
        (PLX, PLX, False),
        (PEX_GEN5, PEX_GEN5_SUB, True),
        (PEX_GEN5, PEX_GEN5, False),  # a second complete switch, not a part of the first
        (PEX_GEN5_SUB, PEX_GEN5_SUB, False),
        (PEX_GEN4, PLX, False),
        (PLX, PEX_GEN4, False),
        (ALONE, ALONE, False),  # another subsystem
    ],
)
def test_nccl_merges_parts_of_one_broadcom_switch(top: Ids, sub: Ids, merged: bool) -> None:
    topology = nested(top, sub)
    whole = topology.switches[0]
    assert [switch.merged_into for switch in topology.switches[1:]] == [whole.key if merged else ""] * 2
    expected = PathType.PIX if merged else PathType.PXB
    assert paths(topology) == (expected, expected)
    assert {gpu.switch == whole.key for gpu in topology.gpus} == {merged}


def test_a_bridge_without_bridges_below_is_no_switch() -> None:
    machine = MachineFiles()
    bridge = machine.function(machine.root_port(0x00), "0000:01:00.0", ("0x1a03", "0x1150", "0x060400", "0x1150"))
    machine.function(bridge, "0000:02:00.0", ("0x1a03", "0x2000", "0x030000", "0x2000"))
    topology = build(machine.snapshot())
    assert topology.switches == () and topology.gpus == ()


def test_a_chipset_with_one_port_is_named_only_where_it_serves_a_gpu() -> None:
    machine = MachineFiles()
    upstream = machine.switch(machine.root_port(0x5D), 0x5E)
    machine.nic(machine.downstream(upstream, 0x5F, 3), 0x60, ["eno1"])
    assert build(machine.snapshot()).switches == ()
    machine.gpu(machine.downstream(upstream, 0x5F, 3), 0x61)
    assert [switch.address for switch in build(machine.snapshot()).switches] == ["0000:5e:00.0"]


def test_a_switch_whose_own_files_are_missing_is_still_there() -> None:
    machine = MachineFiles()
    upstream = machine.switch(machine.root_port(0x15, numa=1), 0x16, numa=1)
    for index in range(2):
        machine.gpu(machine.downstream(upstream, 0x17, 4 * index), 0x18 + index)
    files = {path: text for path, text in machine.files.items() if path.rpartition("/")[0] != upstream}
    links = {path: target for path, target in machine.links.items() if "0000:16:00.0" not in path}
    topology = build(machine.snapshot(files=files, links=links))
    assert [(switch.address, switch.numa_node) for switch in topology.switches] == [("0000:16:00.0", -1)]
    assert Distances(topology).path_type(*(gpu.key for gpu in topology.gpus)) is PathType.PIX


def test_a_virtual_root_bus_below_a_function_ends_the_way_up() -> None:
    vmd = "/sys/devices/pci0000:5d/0000:5d:05.5/pci10000:00/10000:00:02.0/10000:01:00.0"
    assert bridges_above(vmd) == ("/sys/devices/pci0000:5d/0000:5d:05.5/pci10000:00/10000:00:02.0",)


def test_the_way_to_the_cpu_counts_where_a_switch_and_its_devices_disagree() -> None:
    machine = MachineFiles()
    upstream = machine.switch(machine.root_port(0x10, numa=1), 0x11, numa=1)
    for index in range(2):
        machine.gpu(machine.downstream(upstream, 0x12, 4 * index, numa=1), 0x13 + index, numa=0)
    machine.gpu(machine.root_port(0x20, numa=0), 0x21, numa=0)
    topology = build(machine.snapshot())
    assert Distances(topology).path_type(topology.gpus[0].key, topology.gpus[2].key) is PathType.SYS
