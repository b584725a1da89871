"""NCCL's topology XML: ours can be read back, and files from other tools are understood."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.machine_files import reference_machine

from orchestrator.model.topology import PathType, Topology
from orchestrator.topology.build import build
from orchestrator.topology.distance import Distances
from orchestrator.topology.nccl_xml import nccl_xml, topology_of_xml

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
    ("name", "domains", "groups"),
    [("azure-ndv4-topo.xml", 4, [2, 2, 2, 2]), ("azure-ndv5-topo.xml", 2, [1] * 8)],
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
