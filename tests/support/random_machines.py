"""Machines of every shape for hypothesis: any tree of bridges, and healthy nodes that must have no findings."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from tests.support.healthy_cluster import HealthyNode, dressed
from tests.support.machine_files import (
    CX6DX,
    L40S,
    PEX_GEN4,
    PEX_GEN5,
    PEX_GEN5_SUB,
    PLX,
    ROOT_PORT,
    SUB,
    MachineFiles,
    main_card,
    storage_card,
    virtual_functions,
)

MAKES = (PLX, SUB, PEX_GEN4, PEX_GEN5, PEX_GEN5_SUB, ROOT_PORT)


@dataclass(repr=False)
class Grown:
    """A machine with the paths of its GPUs and of its cards' functions."""

    machine: MachineFiles = field(default_factory=MachineFiles)
    gpus: list[str] = field(default_factory=list)
    nics: list[str] = field(default_factory=list)
    bus: int = 0

    def __repr__(self) -> str:
        """Show only the devices' paths; their files would fill pages."""
        kinds = ("/numa_node", "/device", "/subsystem_device")
        kept = {path: text.strip() for path, text in self.machine.files.items() if path.endswith(kinds)}
        return f"gpus={self.gpus} nics={self.nics} files={kept}"

    def next_bus(self) -> str:
        """The next bus, with its domain: a domain has 256 buses."""
        self.bus += 1
        return f"{self.bus // 0xF0:04x}:{self.bus % 0xF0:02x}"

    def put(self, above: str, address: str, ids: tuple[str, str, str, str], numa: int) -> str:
        return self.machine.function(above, address, ids, numa=numa)


@st.composite
def any_machine(draw: st.DrawFn) -> Grown:
    """Trees of bridges of any depth and parity, several domains, cards of one or two functions, failed reads."""
    grown = Grown()
    grown.machine.processors(2)
    for _ in range(draw(st.integers(1, 4))):
        numa = draw(st.sampled_from((0, 1, -1)))
        bus = grown.next_bus()
        _grow(draw, grown, f"/sys/devices/pci{bus}", bus, numa, depth=0)
    for path in draw(st.lists(st.sampled_from(sorted(grown.machine.files)), max_size=3, unique=True)):
        if path.endswith(("/numa_node", "/subsystem_device", "/max_link_width", "/current_link_speed")):
            del grown.machine.files[path]
    return grown


def _grow(draw: st.DrawFn, grown: Grown, above: str, bus: str, numa: int, depth: int) -> None:
    for number in range(draw(st.integers(1, 3))):
        address = f"{bus}:{number + 1:02x}.0"
        kind = draw(st.sampled_from(("gpu", "nic", "bridge", "bridge") if depth < 6 else ("gpu", "nic")))
        if kind == "bridge":
            folder = grown.put(above, address, draw(st.sampled_from(MAKES)), numa)
            _grow(draw, grown, folder, grown.next_bus(), numa, depth + 1)
        elif kind == "gpu":
            grown.gpus.append(grown.put(above, address, L40S, numa))
        else:
            for function in range(draw(st.integers(1, 2))):
                folder = grown.put(above, f"{address[:-1]}{function}", CX6DX, numa)
                grown.machine.rdma(f"mlx5_{len(grown.nics)}", folder, f"eth{len(grown.nics)}", ipv4="10.1.0.1")
                grown.nics.append(folder)


@dataclass(frozen=True)
class Shape:
    """The shape of a healthy node.

    groups:  GPU groups, half of them on each NUMA domain if it has two
    gpus:    GPUs in each group; levels: switches between root port and GPU (0: GPUs on root ports)
    high:    the group's card is behind its top switch, not next to its GPUs
    on_root: upstream ports are on the root bus itself, without a root port
    own:     each GPU has a switch on its own card
    bonded:  the ports of a rail's card are one RDMA device over a bond
    """

    domains: int
    groups: int
    gpus: int
    levels: int
    high: bool
    on_root: bool
    own: bool
    ports: int
    link_layer: str
    storage: bool
    virtual: int
    bonded: bool = False


@st.composite
def healthy_shapes(draw: st.DrawFn) -> Shape:
    domains = draw(st.sampled_from((1, 2)))
    levels = draw(st.integers(0, 3))
    link_layer = draw(st.sampled_from(("Ethernet", "InfiniBand")))
    return Shape(
        domains=domains,
        groups=domains * draw(st.integers(1, 2)),
        gpus=draw(st.sampled_from((1, 2, 4))),
        levels=levels,
        high=draw(st.booleans()),
        on_root=bool(levels) and draw(st.booleans()),
        own=draw(st.booleans()),
        bonded=link_layer == "Ethernet" and draw(st.booleans()),
        ports=draw(st.integers(1, 2)),
        link_layer=link_layer,
        storage=draw(st.booleans()),
        virtual=draw(st.sampled_from((0, 4))),
    )


def healthy_machine(shape: Shape, name: str = "node0", number: int = 0) -> HealthyNode:
    """A healthy node of that shape."""
    machine, bus, rail = MachineFiles(name), 0x40, 0
    machine.processors(shape.domains)
    first_card = ""
    for group in range(shape.groups):
        numa = group * shape.domains // shape.groups
        top = here = ""
        for _ in range(shape.levels):
            if here:
                above = machine.downstream(here, bus, 0, numa=numa)
            else:
                above = f"/sys/devices/pci0000:{bus:02x}" if shape.on_root else machine.root_port(bus, numa=numa)
            here = machine.switch(above, bus if shape.on_root and not here else bus + 1, numa=numa)
            top, bus = top or here, bus + 2
        card_above, beside = (top, 0x40 + 40 * group + 3) if shape.high and shape.levels > 1 else (here, bus)
        for index in range(shape.gpus):
            port = machine.downstream(here, bus, 2 * index, numa=numa) if here else machine.root_port(bus, numa=numa)
            if shape.own:
                own = machine.switch(port, bus + 1 + 2 * index, numa=numa, ids=SUB)
                port = machine.downstream(own, bus + 2 + 2 * index, 0, numa=numa)
            machine.gpu(port, bus + 12 + index, numa=numa)
            bus += 0 if here else 1
        slot = machine.downstream(card_above, beside, 0x1E, numa=numa) if here else machine.root_port(bus, 9, numa=numa)
        names = [f"rail{group}p{index}" for index in range(shape.ports)]
        folders = machine.nic(slot, bus + 20, names, numa=numa)
        first_card = first_card or folders[0]
        if shape.bonded:
            machine.bond(f"bond{group + 1}", names)
            folders, names = folders[:1], [f"bond{group + 1}"]
        for name, folder in zip(names, folders, strict=True):
            rail += 1
            machine.address(name, f"10.{rail}.0.{11 + number}/24")
            machine.rdma(f"mlx5_bond_{rail}" if shape.bonded else f"mlx5_{rail - 1}", folder, name,
                         ipv4=f"10.{rail}.0.{11 + number}/24", link_layer=shape.link_layer)  # fmt: skip
        bus += 22
    if shape.storage:
        storage_card(machine, bus=0xE8, number=number)
    if shape.virtual:
        virtual_functions(machine, first_card, shape.virtual, bus=0xF0)
    main_card(machine, number, bus=0x30)
    return dressed(machine)
