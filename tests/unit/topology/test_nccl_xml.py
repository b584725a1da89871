"""NCCL's topology XML: ours can be read back, and files from other tools are understood."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.machine_files import reference_machine
from tests.support.nccl_walk import Walk
from tests.support.random_machines import Grown, any_machine
from tests.support.variants import nested_node, two_sub_switches
from tests.support.waiting import examples

from orchestrator.model.topology import PathType, Topology
from orchestrator.topology.build import build
from orchestrator.topology.distance import Distances, between_sockets_gbs
from orchestrator.topology.draw import paths_json
from orchestrator.topology.nccl_xml import nccl_xml, topology_of_xml
from orchestrator.topology.paths import matrix, shape

NESTED = '<pci busid="0000:00:00.0">'
RECORDED = Path(__file__).parents[3].parent / "shared" / "recorded"


def recorded(name: str) -> str:
    path = RECORDED / name
    if not path.exists():
        pytest.skip(f"the recorded file {name} is not beside this checkout")
    return path.read_text()


def paths(topology: Topology) -> dict[tuple[str, str], PathType]:
    """Between GPUs, and from GPUs to ports."""
    distances = Distances(topology)
    ends = {f"GPU {gpu.index}": gpu.key for gpu in topology.gpus}
    ends |= {port.device: port.key for port in topology.rdma if port.active}
    return {(one, other): distances.path_type(ends[one], ends[other]) for one in ends for other in ends if one != other}


@pytest.mark.parametrize("right", [True, False])
def test_what_is_written_reads_back_with_the_same_distances(right: bool) -> None:
    topology = build(reference_machine(right=right).snapshot())
    again = topology_of_xml(nccl_xml(topology), "node0")
    assert paths(again) == paths(topology)
    assert [switch.address for switch in again.switches] == [switch.address for switch in topology.switches]
    assert (again.cpu.vendor, again.cpu.family, again.cpu.model) == ("GenuineIntel", 6, 143)


def test_a_right_node_as_nccl_would_write_it() -> None:
    root = ElementTree.fromstring(nccl_xml(build(reference_machine().snapshot())))
    assert [cpu.get("numaid") for cpu in root] == ["0", "1"]
    assert root[0].get("affinity") == "ffffffff"
    assert root[1].get("affinity") == "ffffffff,00000000"
    switch = root[0][0]
    assert (switch.get("busid"), switch.get("class")) == ("0000:16:00.0", "0x060400")
    gpu = switch[0]
    assert (gpu.get("link_speed"), gpu.get("link_width")) == ("16.0 GT/s PCIe", "16")  # though idle at 2.5
    nets = switch.findall("pci/nic/net")
    assert [net.get("name") for net in nets] == ["mlx5_0", "mlx5_1"]  # one card with two ports
    assert [net.get("speed") for net in nets] == ["100000", "100000"]
    main = [pci for pci in root[0].findall("pci") if pci.find("nic") is not None]
    assert [net.get("name") for net in main[0].iter("net")] == ["mlx5_bond_0"]


def test_ports_without_a_link_are_left_out_as_nccl_leaves_them_out() -> None:
    text = nccl_xml(build(reference_machine(right=False).snapshot()))
    assert [net.get("name") for net in ElementTree.fromstring(text).iter("net")] == ["mlx5_4"]


@pytest.mark.parametrize(
    ("name", "domains", "groups"), [("azure-ndv4-topo.xml", 4, [2, 2, 2, 2]), ("azure-ndv5-topo.xml", 2, [1] * 8)]
)
def test_virtual_machines_that_azure_describes(name: str, domains: int, groups: list[int]) -> None:
    topology = topology_of_xml(recorded(name), "vm")
    assert len(topology.numa) == domains
    assert sorted(Counter(gpu.switch for gpu in topology.gpus).values()) == groups
    assert [gpu.index for gpu in topology.gpus] == list(range(8))
    found = paths(topology)
    for one in topology.gpus:
        for other in topology.gpus:
            if one is not other:
                inside = PathType.PIX if one.switch == other.switch else PathType.PHB
                wanted = inside if one.numa_node == other.numa_node else PathType.SYS
                assert found[f"GPU {one.index}", f"GPU {other.index}"] is wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not XML"),
        ("<graphs/>", "wanted <system>"),
        ("<system><cpu>", "is not XML"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><system/>', "DOCTYPE"),
        ('<system><cpu numaid="0"><pci busid="up"/></cpu></system>', "busid 'up'"),
        (f'<system><cpu numaid="0">{NESTED * 40}{"</pci>" * 40}</cpu></system>', "nests more than"),
    ],
)
def test_what_is_no_topology_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        topology_of_xml(text, "node0")


@given(st.text(max_size=30))
def test_any_name_survives_as_text(name: str) -> None:
    machine = reference_machine()
    machine.files["/proc/cpuinfo"] = f"vendor_id\t: {name}\n"
    topology = build(machine.snapshot())
    assert ElementTree.fromstring(nccl_xml(topology)).tag == "system"


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


@settings(max_examples=examples(80), deadline=None)
@given(any_machine())
def test_path_types_of_every_pair(grown: Grown) -> None:
    topology = build(grown.machine.snapshot(nvml={"error": "not recorded"}))
    walk, distances = Walk(grown.machine.files, grown.gpus, grown.nics), Distances(topology)
    nics = frozenset(grown.nics)
    for one, other in combinations([*grown.gpus, *grown.nics], 2):
        assert distances.path_type(one, other).name == walk.type(one, other, nics=nics), (one, other)


@settings(max_examples=examples(30), deadline=None)
@given(any_machine())
def test_the_xml_reads_back_with_the_same_path_types(grown: Grown) -> None:
    topology = build(grown.machine.snapshot(nvml={"error": "not recorded"}))
    again = topology_of_xml(nccl_xml(topology), "node0")
    assert paths_json(again) == paths_json(topology)
    json.dumps(paths_json(topology))
    lines = [
        line.split("\t") for line in matrix(topology).splitlines() if line.startswith(("GPU", "NIC")) and "\t" in line
    ]
    words = {(row, column): line[1 + column] for row, line in enumerate(lines) for column in range(len(lines))}
    assert all(words[row, column] == words[column, row] for row, column in words)


def test_the_walk_knows_the_machines_that_are_known() -> None:
    """The second opinion itself, on machines whose path types are known otherwise."""
    for machine, expected in ((reference_machine(), "SYS"), (nested_node().machine, "PXB")):
        topology = build(machine.snapshot())
        keys = [gpu.key for gpu in topology.gpus]
        walk = Walk(machine.files, keys, [port.key for port in topology.rdma])
        nics = frozenset(port.key for port in topology.rdma)
        assert walk.type(keys[0], keys[1], nics=nics) == "PIX"
        assert walk.type(keys[0], keys[2 if expected == "PXB" else 4], nics=nics) == expected
        assert walk.type(keys[0], topology.rdma[0].key, nics=nics) == ("PXB" if expected == "PXB" else "PIX")
