"""PCI functions: addresses of all widths, links as the kernel prints them, one address used twice."""

from __future__ import annotations

import pytest
from tests.support.machine_files import L40S, MachineFiles

from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import PcieLink
from orchestrator.topology.pci import is_address, nearest_function, normal_address, number, pci_devices, small_number


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
