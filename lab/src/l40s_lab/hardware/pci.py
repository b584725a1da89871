"""Bus numbers for a machine's cards, assigned like firmware does, and each function's configuration space."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from l40s_lab.hardware.machine import (
    Card,
    Disk,
    DisplayAdapter,
    Gpu,
    Machine,
    Nic,
    NicPort,
    PciePort,
    PcieSwitch,
    RootComplex,
)

GTS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
"""Transfer rate of a PCIe generation in GT/s, as sysfs prints it."""
_ALL_ONES_GEN, _ALL_ONES_WIDTH = 6, 63
"""The kernel's value for a link whose registers read as ones (drivers/pci/pci.h, PCIE_LNKCAP2_SLS2SPEED)."""
ENDPOINT, ROOT_PORT, UPSTREAM, DOWNSTREAM, TO_PCI = 0, 4, 5, 6, 7
"""PCIe device types (PCI Express Base Specification 7.5.3.2)."""
_BRIDGE = 0x060400
_INFINIBAND_CONTROLLER = 0x020700
_ACS_REDIRECTS = 0x001D  # source validation, request redirect, completion redirect, upstream forwarding


@dataclass(frozen=True, slots=True, kw_only=True)
class Ids:
    """Vendor, device and subsystem; driver '' if none is bound."""

    vendor: int
    device: int
    subsystem_vendor: int
    subsystem: int
    class_code: int
    revision: int
    driver: str


@dataclass(frozen=True, slots=True)
class LinkState:
    """A link's current generation and lanes, and the best that its lower end supports."""

    gen: int
    width: int
    max_gen: int
    max_width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One PCI function with its position.

    path:  its directory below /sys/devices
    kind:  PCIe device type
    buses: (primary, secondary, subordinate) of a bridge
    acs:   redirects on or off; None if it has no such capability
    """

    address: str
    path: str
    root: str
    numa: int
    ids: Ids
    kind: int
    link: LinkState
    buses: tuple[int, int, int] | None = None
    acs: bool | None = None
    slot: str = ""
    card: Card | None = None
    port: NicPort | None = None

    @property
    def lost(self) -> bool:
        """Every read from it gives ones."""
        return isinstance(self.card, Gpu) and self.card.lost

    @property
    def has_link(self) -> bool:
        """Plain PCI functions behind a bridge have none."""
        return self.kind != TO_PCI


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlace:
    """A physical slot: bus and device behind it, its best speed, and its current one (0: empty)."""

    name: str
    address: str
    gen: int
    now: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Every function of a machine, parents before children, and every named slot."""

    functions: tuple[Function, ...]
    slots: tuple[SlotPlace, ...]

    def of_netdev(self, name: str) -> Function | None:
        """The function of this interface's port."""
        return next((one for one in self.functions if one.port and one.port.netdev == name), None)


def lay_out(machine: Machine) -> Layout:
    """Number all buses depth first, like firmware and the kernel do."""
    functions: list[Function] = []
    slots: list[SlotPlace] = []
    for root in machine.roots:
        _Walk(root, functions, slots).run()
    return Layout(functions=tuple(functions), slots=tuple(slots))


class _Walk:
    def __init__(self, root: RootComplex, functions: list[Function], slots: list[SlotPlace]) -> None:
        self.root = root
        self.name = f"pci0000:{root.bus:02x}"
        self.functions = functions
        self.slots = slots
        self.next_bus = root.bus + 1

    def run(self) -> None:
        for port in self.root.ports:
            self._bridge(port, bus=self.root.bus, above=self.name, kind=ROOT_PORT)

    def _bridge(self, port: PciePort, *, bus: int, above: str, kind: int) -> None:
        """A root port or a switch's downstream port, then everything behind it."""
        ids = _ROOT_PORT_IDS if kind == ROOT_PORT else _SWITCH_IDS
        gen, width = _link(port)
        bridge = self._add(
            f"{bus:02x}:{port.device:02x}.0", above, ids, kind, LinkState(gen, width, port.gen, port.width)
        )
        secondary = self._take_bus()
        if port.slot:
            now = gen if port.card else 0
            self.slots.append(SlotPlace(name=port.slot, address=f"0000:{secondary:02x}:00", gen=port.gen, now=now))
        self._card(port, secondary, self.functions[bridge].path)
        buses = (bus, secondary, self.next_bus - 1)
        self._amend(bridge, buses=buses, acs=port.acs, slot=port.slot)

    def _card(self, port: PciePort, bus: int, above: str) -> None:
        card = port.card
        if isinstance(card, PcieSwitch):
            self._switch(card, port, bus, above)
        elif isinstance(card, DisplayAdapter):
            self._display(card, bus, above)
        elif card is not None:
            gen, width = _link(port)
            for number, (ids, max_gen, max_width, nic_port) in enumerate(_endpoints(card)):
                link = LinkState(gen, width, max_gen, max_width)
                if isinstance(card, Gpu) and card.lost:
                    link = LinkState(0, _ALL_ONES_WIDTH, _ALL_ONES_GEN, _ALL_ONES_WIDTH)
                place = self._add(f"{bus:02x}:00.{number}", above, ids, ENDPOINT, link)
                self._amend(place, card=card, port=nic_port)

    def _switch(self, switch: PcieSwitch, port: PciePort, bus: int, above: str) -> None:
        ids = _ids(switch.vendor, switch.device, switch.subsystem, _BRIDGE, _SWITCH_IDS.revision, _SWITCH_IDS.driver)
        link = LinkState(*_link(port), switch.gen, switch.width)
        upstream = self._add(f"{bus:02x}:00.0", above, ids, UPSTREAM, link)
        inner = self._take_bus()
        for below in switch.ports:
            self._bridge(below, bus=inner, above=self.functions[upstream].path, kind=DOWNSTREAM)
        self._amend(upstream, buses=(bus, inner, self.next_bus - 1), card=switch)

    def _display(self, card: DisplayAdapter, bus: int, above: str) -> None:
        """ASPEED's bridge and the display controller behind it: plain PCI behind one lane."""
        link = LinkState(2, 1, 2, 1)
        inner = self._take_bus()
        bridge = self._add(f"{bus:02x}:00.0", above, _DISPLAY_BRIDGE_IDS, TO_PCI, link)
        self._amend(bridge, buses=(bus, inner, inner))
        display = self._add(f"{inner:02x}:00.0", self.functions[bridge].path, _DISPLAY_IDS, TO_PCI, link)
        self._amend(display, card=card)

    def _take_bus(self) -> int:
        self.next_bus += 1
        return self.next_bus - 1

    def _add(self, short: str, above: str, ids: Ids, kind: int, link: LinkState) -> int:
        address = f"0000:{short}"
        path = f"{above}/{address}"
        numa = self.root.numa
        self.functions.append(
            Function(address=address, path=path, root=self.name, numa=numa, ids=ids, kind=kind, link=link)
        )
        return len(self.functions) - 1

    def _amend(self, place: int, **values: Any) -> None:
        self.functions[place] = replace(self.functions[place], **values)


def _ids(vendor: int, device: int, subsystem: int, class_code: int, revision: int, driver: str) -> Ids:
    """Of a card whose subsystem is its own vendor's."""
    return Ids(
        vendor=vendor, device=device, subsystem_vendor=vendor, subsystem=subsystem, class_code=class_code,
        revision=revision, driver=driver,
    )  # fmt: skip


_ROOT_PORT_IDS = _ids(0x8086, 0x352A, 0, _BRIDGE, 4, "pcieport")
_SWITCH_IDS = _ids(0x1000, 0xC010, 0xA096, _BRIDGE, 0xB0, "pcieport")
_DISPLAY_BRIDGE_IDS = _ids(0x1A03, 0x1150, 0x1150, _BRIDGE, 6, "")
_DISPLAY_IDS = replace(_ids(0x1A03, 0x2000, 0x1C77, 0x030000, 0x52, "ast"), subsystem_vendor=0x15D9)
_DISK_IDS = _ids(0x144D, 0xA80A, 0xA814, 0x010802, 0, "nvme")


def speed(gen: int) -> str:
    """A link's speed as sysfs prints it; 0: its register value is invalid."""
    return f"{GTS[gen]} GT/s PCIe" if gen else "Unknown"


def _link(port: PciePort) -> tuple[int, int]:
    """(generation, lanes) of the link behind a port; for an empty slot or a lost card, the link is down."""
    gen, width = _best(port)
    return min(gen, port.trained_gen or gen), min(width, width if port.trained_width is None else port.trained_width)


def _best(port: PciePort) -> tuple[int, int]:
    card = port.card
    if card is None or (isinstance(card, Gpu) and card.lost):
        return 1, 0
    if isinstance(card, Gpu):
        return 1, min(port.width, card.width)  # an idle L40S stays at generation 1
    if isinstance(card, Nic):
        return min(port.gen, card.max_gen), min(port.width, card.width)
    if isinstance(card, PcieSwitch):
        return min(port.gen, card.gen), min(port.width, card.width)
    if isinstance(card, Disk):
        return min(port.gen, 4), min(port.width, 4)
    return 2, 1


def _endpoints(card: Card) -> Iterator[tuple[Ids, int, int, NicPort | None]]:
    """(ids, best generation, lanes, network port) of each function of a card."""
    if isinstance(card, Gpu):
        ids = _ids(0x10DE, card.device, card.subsystem, 0x030200, 0xA1, "nvidia")
        yield ids, card.max_gen, card.width, None
    elif isinstance(card, Nic):
        ids = _ids(card.vendor, card.device, card.subsystem, 0x020000, 0, card.driver)
        for port in card.ports:
            kind = _INFINIBAND_CONTROLLER if port.link_layer == "InfiniBand" else ids.class_code
            yield replace(ids, class_code=kind), card.max_gen, card.width, port
    elif isinstance(card, Disk):
        yield _DISK_IDS, 4, 4, None


def config_space(function: Function) -> bytes:
    """4096 bytes as root reads them: header, PCI Express capability, AER, and ACS on ports."""
    if function.lost:
        return b"\xff" * 4096
    ids = function.ids
    space = bytearray(4096)
    command, status = 0x0546, 0x0010
    struct.pack_into("<HHHHB", space, 0, ids.vendor, ids.device, command, status, ids.revision)
    space[9:12] = ids.class_code.to_bytes(3, "little")
    space[0x0C] = 0x10
    space[0x34] = 0x40
    _pcie_capability(space, 0x40, function)
    if function.buses:
        space[0x0E] = 0x01
        space[0x18:0x1B] = bytes(function.buses)
        space[0x41] = 0x80
        struct.pack_into("<BBHHH", space, 0x80, 0x0D, 0, 0, ids.subsystem_vendor, ids.subsystem)
    else:
        space[0x0E] = 0x80 if function.port else 0x00
        struct.pack_into("<HH", space, 0x2C, ids.subsystem_vendor, ids.subsystem)
    struct.pack_into("<I", space, 0x100, 0x0001 | 2 << 16 | (0x148 << 20 if function.acs is not None else 0))
    if function.acs is not None:
        struct.pack_into("<IHH", space, 0x148, 0x000D | 1 << 16, 0x005F, _ACS_REDIRECTS if function.acs else 0)
    return bytes(space)


def _pcie_capability(space: bytearray, at: int, function: Function) -> None:
    link = function.link
    slot = function.slot and function.kind in (ROOT_PORT, DOWNSTREAM)
    flags = 2 | function.kind << 4 | (1 << 8 if slot else 0)
    payload = 1  # 256 bytes
    read_request = 5 if function.port else 2  # 4096 bytes for network cards, 512 otherwise
    struct.pack_into("<BBH", space, at, 0x10, 0, flags)
    struct.pack_into("<IHH", space, at + 4, payload, payload << 5 | read_request << 12 | 0x0010, 0)
    struct.pack_into("<I", space, at + 12, link.max_gen | link.max_width << 4)
    struct.pack_into("<HH", space, at + 16, 0x0040, link.gen | link.width << 4)
    if slot and function.slot.isdigit():
        struct.pack_into("<I", space, at + 20, int(function.slot) << 19)
