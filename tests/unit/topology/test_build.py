"""The articles' cluster, correct and faulty, from files that the lab did not write."""

from __future__ import annotations

from tests.support.machine_files import reference_machine

from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import PathType
from orchestrator.topology.build import build
from orchestrator.topology.distance import Distances


def test_the_wrong_node_has_one_card_on_a_root_port_and_its_ports_down() -> None:
    topology = build(reference_machine(right=False).snapshot())
    ports = {port.device: port for port in topology.rdma}
    assert ports["mlx5_0"].switch and not ports["mlx5_2"].switch
    assert [port.device for port in topology.rdma if port.active] == ["mlx5_4"]  # the main card's, for TCP
    assert [port.phys_state for port in topology.rdma].count("Disabled") == 5
    slots = {device.address: device.slot for device in topology.pci if device.slot}
    assert slots == {"0000:1c:00.0": "2", "0000:1c:00.1": "2", "0000:c1:00.0": "6", "0000:c1:00.1": "6"}
    gpu = next(gpu for gpu in topology.gpus if gpu.index == 4)
    assert Distances(topology).path_type(gpu.key, ports["mlx5_2"].key) is PathType.PHB


def test_processors_and_interfaces() -> None:
    topology = build(reference_machine().snapshot())
    assert [(domain.node, domain.cpulist) for domain in topology.numa] == [(0, "0-31"), (1, "32-63")]
    assert topology.numa[0].memory_bytes == 536870912 * 1024
    assert (topology.cpu.vendor, topology.cpu.family, topology.cpu.model) == ("GenuineIntel", 6, 143)
    bond = topology.interface("bond0")
    slave = topology.interface("ens9f0np0")
    assert bond is not None and bond.slaves == ("ens9f0np0", "ens9f1np1") and bond.ipv4 == ("10.0.0.11/24",)
    assert slave is not None and slave.bond == "bond0" and slave.address == "0000:38:00.0" and slave.physical


def test_nothing_at_all_is_an_empty_topology() -> None:
    topology = build(Snapshot(node="bare", taken_at=0.0, files={}))
    assert (topology.node, topology.pci, topology.gpus, topology.interfaces) == ("bare", (), (), ())
