"""The articles' cluster, correct and faulty, from files that the lab did not write."""

from __future__ import annotations

from tests.support.machine_files import MIB, reference_machine

from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import PathType
from orchestrator.topology.build import build
from orchestrator.topology.distance import Distances


def test_a_right_node_has_two_switches_with_four_gpus_and_a_dual_port_card_each() -> None:
    topology = build(reference_machine().snapshot())
    assert [switch.address for switch in topology.switches] == ["0000:16:00.0", "0000:98:00.0"]
    assert [switch.numa_node for switch in topology.switches] == [0, 1]
    for half, switch in enumerate(topology.switches):
        gpus = [gpu for gpu in topology.gpus if gpu.switch == switch.key]
        ports = [port for port in topology.rdma if port.switch == switch.key]
        assert [gpu.index for gpu in gpus] == [4 * half, 4 * half + 1, 4 * half + 2, 4 * half + 3]
        assert [port.device for port in ports] == [f"mlx5_{2 * half}", f"mlx5_{2 * half + 1}"]
        assert len({port.address.rpartition(".")[0] for port in ports}) == 1


def test_distances_on_a_right_node() -> None:
    topology = build(reference_machine().snapshot())
    distances = Distances(topology)
    port = {port.device: port.key for port in topology.rdma}
    gpu = {gpu.index: gpu.key for gpu in topology.gpus}
    assert distances.path_type(gpu[0], gpu[3]) is PathType.PIX
    assert distances.path_type(gpu[0], port["mlx5_1"]) is PathType.PIX
    assert distances.path_type(gpu[0], gpu[4]) is PathType.SYS
    assert distances.path_type(gpu[0], port["mlx5_bond_0"]) is PathType.PHB
    assert distances.path_type(gpu[4], port["mlx5_bond_0"]) is PathType.SYS
    assert distances.path_type(port["mlx5_0"], port["mlx5_1"]) is PathType.LOC


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


def test_gpus_carry_what_nvml_says_and_what_sysfs_says() -> None:
    gpu = build(reference_machine().snapshot()).gpus[5]
    assert (gpu.index, gpu.address, gpu.name) == (5, "0000:9b:00.0", "NVIDIA L40S")
    assert gpu.memory_total == 46068 * MIB and gpu.memory_used == 0
    assert (gpu.link.speed_gts, gpu.link_max.speed_gts, gpu.link.width) == (2.5, 16.0, 16)


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
