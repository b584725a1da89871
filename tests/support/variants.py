"""The healthy node on machines of other shapes, with the same addresses: every fault is tried on each of them. And
healthy nodes of other shapes than the articles': nested switches, cards with several GPUs, no switches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.support.healthy_cluster import HealthyNode, dressed
from tests.support.machine_files import (
    PEX_GEN4,
    PLX,
    SUB,
    MachineFiles,
    main_card,
    rdma_card,
    storage_card,
    virtual_functions,
)

_UPSTREAM, _DOWNSTREAM, _ROOT = 5, 6, 4
_SWITCHES = ("0000:16:00.0", "0000:98:00.0")
_GPUS = tuple(f"0000:{bus:02x}:00.0" for bus in (*range(0x18, 0x1C), *range(0x9A, 0x9E)))
_RAILS = ("ens2f0np0", "ens2f1np1", "ens3f0np0", "ens3f1np1")
_CARDS = ("0000:1c:00", "0000:9e:00", "0000:38:00")


@dataclass(frozen=True)
class Variant:
    """A shape. change: turns the reference node into it. hidden: it does not show its PCIe switches."""

    name: str
    change: Callable[[HealthyNode], None]
    hidden: bool = False


def _put_between(node: HealthyNode, address: str, buses: tuple[int, int], ids: tuple[str, str, str, str]) -> None:
    """A separate switch, with one port, directly above a function."""
    old = node.key(address)
    above, numa = old.rpartition("/")[0], int(node.files[f"{old}/numa_node"])
    upstream = node.machine.switch(above, buses[0], numa=numa, ids=ids)
    downstream = node.machine.function(upstream, f"0000:{buses[1]:02x}:00.0", ids, numa=numa, driver="pcieport")
    node.move(old, f"{downstream}/{address}")
    for bridge, kind, below in ((upstream, _UPSTREAM, buses[1]), (downstream, _DOWNSTREAM, int(address[5:7], 16))):
        node.config(bridge.rpartition("/")[2], kind=kind, bus=below, acs=0)
        _dress(node, bridge)


def _dress(node: HealthyNode, key: str) -> None:
    for error in ("correctable", "nonfatal", "fatal"):
        node.files[f"{key}/aer_dev_{error}"] = "TOTAL 0\n"
    groups = sum(path.startswith("/sys/kernel/iommu_groups/") for path in node.files)
    node.machine.link(
        f"{key}/iommu_group", node.machine.write(f"/sys/kernel/iommu_groups/{groups}", {"type": "identity"})
    )


def _nested(node: HealthyNode) -> None:
    """Each half's switch behind another one."""
    for place, address in enumerate(_SWITCHES):
        _put_between(node, address, (0xE0 + 2 * place, 0xE1 + 2 * place), PLX)


def _own_switches(node: HealthyNode) -> None:
    """Each GPU behind a switch on its own card."""
    for place, address in enumerate(_GPUS):
        _put_between(node, address, (0x50 + 2 * place, 0x51 + 2 * place), SUB)


def _with_functions(node: HealthyNode) -> None:
    """SR-IOV: the first card has four virtual functions, which nobody uses."""
    virtual_functions(node.machine, node.key("0000:1c:00.0"), 4, bus=0x1C)
    for index in range(4):
        _dress(node, node.key(f"0000:1c:01.{index}"))


def guest(node: HealthyNode) -> None:
    """A virtual machine: every GPU and card on an emulated root port of its own, no switch visible."""
    node.files["/proc/cpuinfo"] += "flags\t\t: fpu vme hypervisor avx2\n"
    for place, name in enumerate((*_GPUS, *_CARDS)):
        functions = [name] if name in _GPUS else [f"{name}.0", f"{name}.1"]
        first = node.key(functions[0])
        numa = int(node.files[f"{first}/numa_node"])
        port = node.machine.function(
            f"/sys/devices/pci0000:{0x60 + 0x10 * numa:02x}", f"0000:{0x60 + 0x10 * numa:02x}:{place + 1:02x}.0",
            ("0x1b36", "0x000c", "0x060400", "0x0000"), numa=numa, driver="pcieport",
        )  # fmt: skip
        node.config(port.rpartition("/")[2], kind=_ROOT, bus=int(name[5:7], 16), acs=0)
        _dress(node, port)
        for function in functions:
            node.move(node.key(function), f"{port}/{function}")
            node.config(function, ats=0x8000, read_request=512 if name in _GPUS else 4096)
    for folder in {path.rpartition("/")[0] for path in node.files if path.endswith("/class")}:
        if folder.startswith(("/sys/devices/pci0000:15", "/sys/devices/pci0000:97", "/sys/devices/pci0000:37")):
            node.remove(folder)


def bonded_rails(node: HealthyNode) -> None:
    """Each RDMA port near the GPUs is a bond of two ports. A bond may have any name: these have the ports' old ones."""
    for name in _RAILS:
        folder = node.interface(name)
        node.remove(folder)
        slaves = [f"{name}a", f"{name}b"]
        for slave in slaves:
            node.machine.interface(slave, folder.partition("/net/")[0])
        bond = node.machine.bond(name, slaves)
        node.machine.write(f"{bond}/bonding", {"ad_aggregator": 1})


VARIANTS = (
    Variant("nested", _nested),
    Variant("switches on the GPUs' cards", _own_switches),
    Variant("virtual functions", _with_functions),
    Variant("bonded rails", bonded_rails),
    Variant("virtual machine", guest, hidden=True),
)


Shape = Callable[[str, int], HealthyNode]


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
