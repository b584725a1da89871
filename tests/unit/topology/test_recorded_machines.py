"""Machines recorded by others: our results match their published descriptions."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from orchestrator.doctor.steps.recordings import load_saved
from orchestrator.model.snapshot import Snapshot, snapshot_from_json
from orchestrator.model.topology import PathType, Topology
from orchestrator.node.look.hardware import read_rdma
from orchestrator.node.look.reading import SnapshotReader
from orchestrator.topology.build import build
from orchestrator.topology.distance import Bandwidths, Distances, gpu_groups
from orchestrator.topology.draw import tree
from orchestrator.topology.gpus import AcceleratorClass
from orchestrator.topology.nccl_xml import nccl_xml, topology_of_xml
from orchestrator.topology.paths import NONE_SHARED, matrix, shape
from orchestrator.topology.pci import bridges_above, nic_cards

RECORDED = Path(__file__).parents[3].parent / "shared" / "recorded"
VECTOR_ENGINES = (AcceleratorClass(0x0B40, 0x1BCF),)


def recorded(name: str) -> Path:
    path = RECORDED / name
    if not path.exists():
        pytest.skip(f"the recorded machine {name} is not beside this checkout")
    return path


def test_two_switches_with_four_accelerators_and_one_card_each() -> None:
    (snapshot,) = load_saved(recorded("32intel64-2p8co2t+8ve.tar.bz2")).values()
    topology = build(snapshot, VECTOR_ENGINES)
    assert [switch.address for switch in topology.switches] == ["0000:18:00.0", "0000:3b:00.0"]
    assert Counter(gpu.switch for gpu in topology.gpus) == {switch.key: 4 for switch in topology.switches}
    mellanox = [device for device in topology.pci if device.vendor == 0x15B3]
    switches = {switch.key for switch in topology.switches}
    assert [next(key for key in bridges_above(card.key) if key in switches) for card in mellanox] == [
        switch.key for switch in topology.switches
    ]
    distances = Distances(topology)
    for gpu in topology.gpus:
        for other in topology.gpus:
            inside = PathType.LOC if gpu is other else PathType.PIX
            expected = inside if gpu.switch == other.switch else PathType.PHB  # both switches are on NUMA domain 0
            assert distances.path_type(gpu.key, other.key) is expected
        for card, switch in zip(mellanox, topology.switches, strict=True):
            expected = PathType.PIX if gpu.switch == switch.key else PathType.PHB
            assert distances.path_type(gpu.key, card.key) is expected
    assert len(nic_cards(topology)) == 3
    assert (topology.cpu.family, topology.cpu.model) == (6, 85)


def test_a_machine_with_32_bit_domains() -> None:
    (snapshot,) = load_saved(recorded("2pa-pcidomain32bits.tar.bz2")).values()
    topology = build(snapshot)
    assert "10000:00:04.0" in {device.address for device in topology.pci}
    network = topology.interface("ens3")
    assert network is not None and (network.address, network.mac) == ("0000:00:03.0", "06:7a:4c:00:00:22")
    assert tree(topology).children


def test_a_machine_where_three_functions_claim_one_address() -> None:
    (snapshot,) = load_saved(recorded("fakepcilocalities.tar.bz2")).values()
    topology = build(snapshot)
    assert len(topology.numa) == 4
    assert len({device.key for device in topology.pci}) == len(topology.pci)
    assert [(port.device, port.state) for port in topology.rdma] == [("qib0", "ACTIVE")]
    assert tree(topology).children


def test_infiniband_devices_of_an_h100_host() -> None:
    folder = recorded("sys-class-infiniband-h100")
    reader = SnapshotReader(root=str(next(folder.iterdir())), mount="/sys/class/infiniband")
    read_rdma(reader)
    ports = build(Snapshot(node="h100", taken_at=0.0, files=reader.files, links=reader.links)).rdma
    layers = Counter((port.link_layer, port.state, port.rate_gbps) for port in ports)
    assert layers[("InfiniBand", "ACTIVE", 400.0)] + layers[("InfiniBand", "DOWN", 400.0)] >= 1
    (bond,) = [port for port in ports if port.device == "mlx5_bond_0"]
    assert (bond.link_layer, bond.rate_gbps) == ("Ethernet", 200.0)
    assert len(ports) == 9


TWO_H200 = Path(__file__).resolve().parents[2] / "recorded" / "two-h200-vm.json"


def test_two_h200_of_a_virtual_machine() -> None:
    topology = build(snapshot_from_json(json.loads(TWO_H200.read_text())))
    assert [gpu.name for gpu in topology.gpus] == ["NVIDIA H200", "NVIDIA H200"]
    assert topology.driver == "580.159.04"
    # nvidia-smi there: memory.total 143771 MiB, memory.used 0 MiB although the driver reserves 616 MiB
    assert {gpu.memory_total >> 20 for gpu in topology.gpus} == {143771}
    assert {gpu.memory_used for gpu in topology.gpus} == {0}
    assert not topology.rdma
    assert Distances(topology).path_type(topology.gpus[0].key, topology.gpus[1].key) is PathType.PHB


NVLINKS = [{"link": link, "active": 1, "p2p": 1, "remote": "FFFFFFF:FF:FF.0"} for link in range(18)]
"""What NVML 13.580 answers there for each GPU's links; the recording is older than the question."""
DUMP = """<system version="1">
  <cpu host_hash="0xd94b6e93f7a20cfb" numaid="-1" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="207">
    <pci busid="0000:00:06.0" class="0x030200" vendor="0x10de" device="0x2335" subsystem_vendor="0x10de"
      subsystem_device="0x18bf" link_speed="32.0 GT/s PCIe" link_width="0">
      <gpu dev="0" sm="90" rank="0" gdr="1">
        <nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>
      </gpu>
    </pci>
    <pci busid="0000:00:07.0" class="0x030200" vendor="0x10de" device="0x2335" subsystem_vendor="0x10de"
      subsystem_device="0x18bf" link_speed="32.0 GT/s PCIe" link_width="0">
      <gpu dev="1" sm="90" rank="1" gdr="1">
        <nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>
      </gpu>
    </pci>
  </cpu>
</system>"""
"""NCCL 2.28.9's own dump of such a machine, without its network cards."""


def with_nvlink() -> Topology:
    snapshot = snapshot_from_json(json.loads(TWO_H200.read_text()))
    devices = [{**device, "nvlinks": NVLINKS} for device in snapshot.nvml["devices"]]
    return build(replace(snapshot, nvml={**snapshot.nvml, "devices": devices}))


def gpus_of(text: str) -> dict[str, tuple[object, ...]]:
    """By address: the link's speed, the GPU's attributes, its NVLinks."""
    return {
        pci.get("busid", ""): (pci.get("link_speed"), gpu.attrib, [link.attrib for link in gpu])
        for pci in ElementTree.fromstring(text).iter("pci")
        if (gpu := pci.find("gpu")) is not None
    }


def test_gpus_are_written_as_nccl_writes_them() -> None:
    assert gpus_of(nccl_xml(with_nvlink())) == gpus_of(DUMP)
    assert 'link_width="16"' in nccl_xml(with_nvlink())  # where NCCL writes 0 and counts 16


ON_ROOT_PORTS = "none behind a switch"


@pytest.mark.parametrize("topology", [with_nvlink(), topology_of_xml(DUMP, "vm")], ids=["nvml", "NCCL's dump"])
def test_nvlink_is_the_path_between_the_gpus(topology: Topology) -> None:
    one, other = (gpu.key for gpu in topology.gpus)
    assert Distances(topology).path_type(one, other) is PathType.NVL
    assert shape(topology).words == f"2 GPUs, {NONE_SHARED if topology.of_text else ON_ROOT_PORTS}; between GPUs NVL"
    assert matrix(topology).splitlines()[1].split()[:3] == ["GPU0", "X", "NV18"]  # as nvidia-smi prints it there
    assert Bandwidths(topology, (2, 28, 9)).between(one, other) == pytest.approx(18 * 20.6)
    assert gpu_groups(topology, (2, 28, 9)).groups == ((0, 1),)


def test_what_nvml_does_not_say_is_left_out() -> None:
    topology = with_nvlink()
    unknown = tuple(replace(gpu, sm=0, nvlinks=None) for gpu in topology.gpus)
    _, attributes, links = gpus_of(nccl_xml(replace(topology, gpus=unknown)))["0000:00:06.0"]
    assert attributes == {"dev": "0", "rank": "0", "gdr": "1"} and links == []
