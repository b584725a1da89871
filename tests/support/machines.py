"""Healthy nodes of other shapes than the articles': nested switches, cards with several GPUs, no switches."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.healthy_cluster import HealthyNode, dressed
from tests.support.machine_files import PEX_GEN4, MachineFiles

SUB = ("0x10b5", "0x8796", "0x060400", "0x8796")
"""Another make than the machine's own switches, used on GPU cards."""
PLAIN_VF = ("0x15b3", "0x101e", "0x020000", "0x0016")


def nested_node(name: str = "node0", number: int = 0, *, cards_on_top: bool = True) -> HealthyNode:
    """Two NUMA domains, each with a top switch above two sub-switches of two GPUs; each half's RDMA card is behind the
    top switch, or behind its first sub-switch. A bonded main card is on a root port."""
    machine = MachineFiles(name)
    machine.processors()
    for half in (0, 1):
        base = 0x40 + 0x40 * half
        top = machine.switch(machine.root_port(base, numa=half), base + 1, numa=half)
        subs = []
        for place in (0, 1):
            bus = base + 0x10 + 0x10 * place
            sub = machine.switch(machine.downstream(top, base + 2, 4 * place, numa=half), bus, numa=half)
            subs.append(sub)
            for index in (0, 1):
                machine.gpu(machine.downstream(sub, bus + 1, 4 * index, numa=half), bus + 2 + index, numa=half)
        above, bus = (top, base + 2) if cards_on_top else (subs[0], base + 0x11)
        rdma_card(machine, machine.downstream(above, bus, 0x10, numa=half), base + 8, half, number)
    main_card(machine, number)
    return dressed(machine)


def gpus_alone_behind_their_own_switch(name: str = "node0", number: int = 0) -> HealthyNode:
    """Eight cards with a switch and one GPU each, on root ports; two RDMA cards on root ports too."""
    machine = MachineFiles(name)
    machine.processors()
    for index in range(8):
        bus, half = 0x40 + 8 * index, index // 4
        own = machine.switch(machine.root_port(bus, numa=half), bus + 1, numa=half, ids=SUB)
        machine.gpu(machine.downstream(own, bus + 2, 0, numa=half), bus + 3, numa=half)
    for half in (0, 1):
        rdma_card(machine, machine.root_port(0xC0 + 0x10 * half, 3, numa=half), 0xC1 + 0x10 * half, half, number)
    main_card(machine, number)
    return dressed(machine)


def on_root_ports(
    name: str = "node0", number: int = 0, *, link_layer: str = "Ethernet", storage: bool = False
) -> HealthyNode:
    """Eight GPUs and two RDMA cards, each on a root port of its own. storage: beside an Ethernet card for storage."""
    machine = MachineFiles(name)
    machine.processors()
    for index in range(8):
        machine.gpu(machine.root_port(0x40 + 4 * index, numa=index // 4), 0x41 + 4 * index, numa=index // 4)
    for half in (0, 1):
        bus = 0xC0 + 0x10 * half
        rdma_card(machine, machine.root_port(bus, 3, numa=half), bus + 1, half, number, link_layer=link_layer)
    if storage:
        storage_card(machine, number=number)
    main_card(machine, number)
    return dressed(machine)


def two_sub_switches() -> MachineFiles:
    """Two GPUs, each behind a sub-switch of its own of one Broadcom switch."""
    machine = MachineFiles()
    top = machine.switch(machine.root_port(0x10), 0x11, ids=PEX_GEN4)
    for index in range(2):
        bus = 0x20 + 0x10 * index
        sub = machine.switch(machine.downstream(top, 0x12, 4 * index), bus, ids=PEX_GEN4)
        machine.gpu(machine.downstream(sub, bus + 1, 0), bus + 2)
    return machine


def rdma_card(
    machine: MachineFiles, above: str, bus: int, half: int, number: int, link_layer: str = "Ethernet"
) -> None:
    """A dual-port card with both rails of one half."""
    names = [f"ens{half + 2}f0np0", f"ens{half + 2}f1np1"]
    for index, folder in enumerate(machine.nic(above, bus, names, numa=half)):
        rail = half * 2 + index
        address = f"10.{rail + 1}.0.{11 + number}/24"
        machine.address(names[index], address)
        machine.rdma(f"mlx5_{rail}", folder, names[index], ipv4=address, link_layer=link_layer)


def main_card(machine: MachineFiles, number: int, *, bus: int = 0x37) -> None:
    """A bonded card on a root port."""
    names = ["ens9f0np0", "ens9f1np1"]
    folders = machine.nic(machine.root_port(bus, 1, numa=0), bus + 1, names)
    address = f"10.0.0.{11 + number}/24"
    machine.bond("bond0", names)
    machine.address("bond0", address)
    machine.rdma("mlx5_bond_0", folders[0], "bond0", ipv4=address, rate="200 Gb/sec (4X HDR)")
    machine.interface("lo", mtu=65536, speed=0)
    machine.address("lo", "127.0.0.1/8")


def storage_card(machine: MachineFiles, *, bus: int = 0xB0, number: int = 0) -> None:
    """One port on a root port of NUMA domain 0, with an address in a separate network."""
    (folder,) = machine.nic(machine.root_port(bus, 1, numa=0), bus + 1, ["ens20np0"])
    address = f"10.20.0.{11 + number}/24"
    machine.address("ens20np0", address)
    machine.rdma("mlx5_20", folder, "ens20np0", ipv4=address)


def virtual_functions(machine: MachineFiles, card: str, count: int, *, bus: int) -> None:
    """SR-IOV functions of a card: RDMA devices that are down and whose interfaces are not in use."""
    above = card.rpartition("/")[0]
    for index in range(count):
        folder = machine.function(above, f"0000:{bus:02x}:01.{index}", PLAIN_VF, driver="mlx5_core")
        machine.link(f"{folder}/physfn", card)
        machine.rdma(f"mlx5_{30 + index}", folder, f"enp{bus}v{index}", up=False)


Shape = Callable[[str, int], HealthyNode]
