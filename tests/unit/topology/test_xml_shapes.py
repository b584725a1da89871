"""NCCL's XML of machines of every make: merged switches, addresses used twice, other processors."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from tests.support.machine_files import MachineFiles, reference_machine
from tests.support.machines import two_sub_switches

from orchestrator.model.topology import CpuModel, PathType, Topology
from orchestrator.topology.bandwidth import between_sockets_gbs
from orchestrator.topology.build import build
from orchestrator.topology.distance import Distances
from orchestrator.topology.nccl_xml import nccl_xml, topology_of_xml
from orchestrator.topology.shape import shape


def between(topology: Topology) -> PathType:
    one, other = topology.gpus
    return Distances(topology).path_type(one.key, other.key)


def test_parts_of_one_broadcom_switch_are_merged_when_read() -> None:
    topology = build(two_sub_switches().snapshot())
    text = nccl_xml(topology)
    assert len(re.findall(r'<pci [^>]*class="0x060400"', text)) == 3, "as NCCL dumps it, before it merges"
    again = topology_of_xml(text, "node0")
    assert between(topology) is between(again) is PathType.PIX
    assert {gpu.switch for gpu in again.gpus} == {again.switches[0].key}


def test_an_address_used_twice_is_two_devices() -> None:
    leaf = '<pci busid="ffff:ff:01.0" class="0x060400"><pci busid="{}" class="0x030200"><gpu dev="{}"/></pci>{}</pci>'
    nic = '<pci busid="{}" class="0x020700"><nic><net name="mlx5_{}" dev="{}" speed="200000" port="1"/></nic></pci>'
    parts = "".join(leaf.format(f"000{n}:00:00.0", n, nic.format(f"010{n}:00:00.0", n, n)) for n in range(4))
    topology = topology_of_xml(f'<system><cpu numaid="0" arch="x86_64">{parts}</cpu></system>', "vm")
    assert len({device.key for device in topology.pci}) == len(topology.pci) == 12
    seen = shape(topology)
    assert [(group.gpus, group.nics) for group in seen.groups] == [(1, 1)] * 4
    assert (seen.gpus_elsewhere, seen.nics_elsewhere) == (0, 0)
    distances = Distances(topology)
    assert distances.path_type(topology.gpus[0].key, topology.rdma[0].key) is PathType.PIX
    assert distances.path_type(topology.gpus[0].key, topology.gpus[1].key) is PathType.PHB
    twice = '<pci busid="0000:01:00.0" class="0x030200"/>' * 2
    same = topology_of_xml(f'<system><cpu numaid="0"><pci busid="0000:00:01.0">{twice}</pci></cpu></system>', "vm")
    assert between(same) is PathType.PIX


@pytest.mark.parametrize(
    ("cpuinfo", "uname", "arch", "gbs"),
    [
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", "ppc64le", "ppc64", 32.0),
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", "", "ppc64", 32.0),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", "", "arm64", 6.0),
        ("processor\t: 0\nBogoMIPS\t: 50\n", "aarch64", "arm64", 6.0),
        ("vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n", "", "x86_64", 22.0),
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 25\n", "x86_64", "x86_64", 16.0),
    ],
)
def test_other_processors(cpuinfo: str, uname: str, arch: str, gbs: float) -> None:
    machine = reference_machine()
    machine.files["/proc/cpuinfo"] = cpuinfo
    topology = build(machine.snapshot(host={"uname": {"machine": uname}}))
    assert topology.cpu.arch == arch
    assert between_sockets_gbs(topology.cpu, (2, 30, 7)) == gbs
    cpu = ElementTree.fromstring(nccl_xml(topology))[0]
    assert cpu.get("arch") == arch and (cpu.get("vendor") is not None) == (arch == "x86_64")
    again = topology_of_xml(nccl_xml(topology), "node0")
    assert between_sockets_gbs(again.cpu, (2, 30, 7)) == gbs


def test_the_make_of_an_unknown_processor_is_not_powers() -> None:
    assert between_sockets_gbs(CpuModel(), (2, 30, 7)) == 6.0


def test_an_upstream_port_on_the_root_bus_itself() -> None:
    """An even number of bridges: NCCL steps from the device up, not from the root down."""
    machine = MachineFiles()
    upstream = machine.switch("/sys/devices/pci0000:10", 0x10)
    for index in range(2):
        machine.gpu(machine.downstream(upstream, 0x11, 4 * index), 0x12 + index)
    topology = build(machine.snapshot())
    assert [switch.address for switch in topology.switches] == ["0000:10:00.0"]
    assert between(topology) is PathType.PIX
    assert {gpu.switch for gpu in topology.gpus} == {topology.switches[0].key}


def test_an_upstream_port_on_the_root_bus_with_a_switch_below() -> None:
    machine = MachineFiles()
    top = machine.switch("/sys/devices/pci0000:10", 0x10)
    for index in range(2):
        bus = 0x20 + 0x10 * index
        sub = machine.switch(machine.downstream(top, 0x11, 4 * index), bus)
        machine.gpu(machine.downstream(sub, bus + 1, 0), bus + 2)
        machine.downstream(sub, bus + 1, 8)  # an empty port
    topology = build(machine.snapshot())
    assert [switch.address for switch in topology.switches] == ["0000:10:00.0", "0000:20:00.0", "0000:30:00.0"]
    assert between(topology) is PathType.PXB
    assert between(topology_of_xml(nccl_xml(topology), "node0")) is PathType.PXB


def test_gpus_are_numbered_by_address_where_nobody_asked_nvml() -> None:
    topology = build(reference_machine().snapshot(nvml={"error": "not recorded"}))
    assert [gpu.index for gpu in topology.gpus] == list(range(8))
    wedged = build(reference_machine().snapshot(nvml={"error": "NVML did not answer"}))
    assert {gpu.index for gpu in wedged.gpus} == {-1}
