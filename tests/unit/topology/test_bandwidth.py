"""Bandwidths by NCCL's constants, and what they decide inside a node."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.machine_files import MachineFiles, reference_machine

from orchestrator.model.topology import CpuModel, PcieLink, Topology
from orchestrator.topology.build import build
from orchestrator.topology.distance import Bandwidths, between_sockets_gbs, gpu_groups, nccl_log, network_gbs, pci_gbs

TODAY, ARTICLES = (2, 30, 7), (2, 21, 5)
SKX, SPR, EMR = (CpuModel(vendor="GenuineIntel", family=6, model=model) for model in (0x55, 0x8F, 0xCF))
AMD = CpuModel(vendor="AuthenticAMD", family=25, model=17)


@pytest.mark.parametrize(
    ("gts", "width", "gbs"),
    [(16.0, 16, 24), (8.0, 16, 12), (16.0, 8, 12), (2.5, 16, 3), (32.0, 16, 48), (0.0, 0, 12), (99.0, 16, 12)],
)
def test_pci_links(gts: float, width: int, gbs: float) -> None:
    assert pci_gbs(PcieLink(speed_gts=gts, width=width)) == gbs


@pytest.mark.parametrize(
    ("cpu", "nccl", "gbs"),
    [
        (SKX, TODAY, 10), (SPR, TODAY, 22), (EMR, TODAY, 40), (AMD, TODAY, 16), (AMD, ARTICLES, 16),
        (SPR, ARTICLES, 10), (EMR, ARTICLES, 10), (SPR, (2, 26, 2), 22),
        (CpuModel(vendor="GenuineIntel", family=6, model=0x4F), TODAY, 6), (CpuModel(vendor="ARM"), TODAY, 6),
        (CpuModel(), TODAY, 6),
    ],
)  # fmt: skip
def test_between_sockets(cpu: CpuModel, nccl: tuple[int, ...], gbs: float) -> None:
    assert between_sockets_gbs(cpu, nccl) == gbs


def test_ways_of_a_right_node() -> None:
    topology = build(reference_machine().snapshot())
    ways = Bandwidths(topology, TODAY)
    gpu = [gpu.key for gpu in topology.gpus]
    assert ways.between(gpu[0], gpu[1]) == 24
    assert ways.between(gpu[0], gpu[4]) == 22
    assert ways.between(gpu[0], gpu[0]) == 5000
    assert ways.between(gpu[0], "nowhere") == 0
    assert network_gbs(100) == 12.5


def test_a_slow_uplink_bounds_what_leaves_its_switch_only() -> None:
    machine = MachineFiles()
    upstream = machine.switch(machine.root_port(0x10), 0x11)
    for index in range(2):
        machine.gpu(machine.downstream(upstream, 0x12, 4 * index), 0x13 + index)
    machine.gpu(machine.root_port(0x20), 0x21)
    machine.write(upstream, {"max_link_width": 8})
    topology = build(machine.snapshot())
    ways = Bandwidths(topology, TODAY)
    gpu = [gpu.key for gpu in topology.gpus]
    assert (ways.between(gpu[0], gpu[1]), ways.between(gpu[0], gpu[2])) == (24, 12)


def changed(cpu: CpuModel, *, ports: int = 2, nic_gts: float = 16.0) -> Topology:
    """A correct node with another CPU, one or two active ports per card, and another slot generation for the cards."""
    topology = build(reference_machine().snapshot())
    cards = {port.key for port in topology.rdma}
    dead = {f"mlx5_{2 * half + 1}" for half in range(2)} if ports == 1 else set()
    return replace(
        topology,
        cpu=cpu,
        rdma=tuple(replace(port, state="DOWN") if port.device in dead else port for port in topology.rdma),
        pci=tuple(
            replace(device, link_max=PcieLink(speed_gts=nic_gts, width=16)) if device.key in cards else device
            for device in topology.pci
        ),
    )


@pytest.mark.parametrize(
    ("cpu", "one_port", "two_ports", "two_ports_gen3"),
    [(SKX, True, True, True), (SPR, False, True, False), (EMR, False, False, False), (AMD, False, True, False)],
)
def test_when_the_halves_of_a_node_meet_over_the_network(
    cpu: CpuModel, one_port: bool, two_ports: bool, two_ports_gen3: bool
) -> None:
    """12.5, 24 and 12 GB/s, compared with the link between the sockets."""
    assert gpu_groups(changed(cpu, ports=1), TODAY).over_network is one_port
    assert gpu_groups(changed(cpu), TODAY).over_network is two_ports
    assert gpu_groups(changed(cpu, nic_gts=8.0), TODAY).over_network is two_ports_gen3


def test_what_the_log_should_show() -> None:
    right = gpu_groups(build(reference_machine().snapshot()), TODAY)
    assert right.groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert right.reason == "over the RDMA cards 24, between the GPUs 22 GB/s"
    wrong = gpu_groups(build(reference_machine(right=False).snapshot()), TODAY)
    assert wrong.groups == ((0, 1, 2, 3, 4, 5, 6, 7),)
    assert "not above 22 GB/s" in wrong.reason
    assert nccl_log([right] * 3 + [wrong]) == (7, 8)
    assert nccl_log([]) == (0, 0)


def test_both_switches_on_one_socket_stay_together() -> None:
    topology = build(reference_machine().snapshot())
    one_socket = replace(topology, switches=tuple(replace(switch, numa_node=0) for switch in topology.switches))
    assert not gpu_groups(one_socket, TODAY).over_network
