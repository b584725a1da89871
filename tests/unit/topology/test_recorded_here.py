"""A real NVIDIA machine, recorded by our own probe: it matches what nvidia-smi showed on it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from orchestrator.model.snapshot import snapshot_from_json
from orchestrator.model.topology import PathType, Topology
from orchestrator.topology.build import build
from orchestrator.topology.distance import Bandwidths, Distances, gpu_groups
from orchestrator.topology.nccl_xml import nccl_xml, topology_of_xml
from orchestrator.topology.paths import matrix, shape

RECORDED = Path(__file__).resolve().parents[2] / "recorded" / "two-h200-vm.json"


def test_two_h200_of_a_virtual_machine() -> None:
    topology = build(snapshot_from_json(json.loads(RECORDED.read_text())))
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
    snapshot = snapshot_from_json(json.loads(RECORDED.read_text()))
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


@pytest.mark.parametrize("topology", [with_nvlink(), topology_of_xml(DUMP, "vm")], ids=["nvml", "NCCL's dump"])
def test_nvlink_is_the_path_between_the_gpus(topology: Topology) -> None:
    one, other = (gpu.key for gpu in topology.gpus)
    assert Distances(topology).path_type(one, other) is PathType.NVL
    assert shape(topology).words == "2 GPUs, none behind a switch; between GPUs NVL"
    assert matrix(topology).splitlines()[1].split()[:3] == ["GPU0", "X", "NV18"]  # as nvidia-smi prints it there
    assert Bandwidths(topology, (2, 28, 9)).between(one, other) == pytest.approx(18 * 20.6)
    assert gpu_groups(topology, (2, 28, 9)).groups == ((0, 1),)


def test_what_nvml_does_not_say_is_left_out() -> None:
    topology = with_nvlink()
    unknown = tuple(replace(gpu, sm=0, nvlinks=None) for gpu in topology.gpus)
    _, attributes, links = gpus_of(nccl_xml(replace(topology, gpus=unknown)))["0000:00:06.0"]
    assert attributes == {"dev": "0", "rank": "0", "gdr": "1"} and links == []
