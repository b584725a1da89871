"""A node as a drawing: boxes and lines with places in pixels, whatever draws them in the end.

One column a NUMA domain: the CPU on top, below it the switches with what is behind them (in each other where they
nest), then the cards on root ports. A line down the column's side is the CPU's PCIe; every switch and root-port card
hangs off it by a stub.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from orchestrator.model.topology import Gpu, Interface, PciDevice, RdmaPort, Switch, Topology
from orchestrator.topology.draw import Branch, Card, Domain, domains_of
from orchestrator.topology.network import PortFault, carrier, port_fault
from orchestrator.topology.pci import card, part_name
from orchestrator.topology.switches import SwitchPlaces

GPU_W, GPU_H = 82, 40
CARD_W, PORT_H, CARD_HEAD = 262, 17, 22
SLOT_W = 82
GAP, PAD, STUB = 8, 12, 26
COLUMN_W = STUB + 4 * GPU_W + 3 * GAP + 2 * PAD
CPU_H, HEAD_H = 30, 24
_PER_ROW = 4


@dataclass(frozen=True, slots=True)
class Mark:
    """What is wrong with a thing: severity's word, and the finding's number on the page."""

    severity: str
    number: int


@dataclass(frozen=True, slots=True)
class Box:
    """kind: cpu, switch, gpu, card, slot (empty). title: all that is known of it, for whoever points at it.

    gpu: NVML's index where it is one, else -1; state: what `live_drawing` says of it now, '' on a drawing at rest
    """

    x: int
    y: int
    w: int
    h: int
    kind: str
    lines: tuple[str, ...]
    title: str = ""
    mark: Mark | None = None
    gpu: int = -1
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One line of a card: a dot that shows its state (up, idle, down, other, old), its names, and its address or
    trouble. device, number: of the RDMA port, '' and 0 where it is none."""

    x: int
    y: int
    state: str
    name: str
    detail: str
    mark: Mark | None = None
    device: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CableLine:
    """A straight line; kind: pcie or sockets."""

    x1: int
    y1: int
    x2: int
    y2: int
    kind: str = "pcie"
    words: str = ""
    mark: Mark | None = None


@dataclass(slots=True)
class Picture:
    """Everything of one node's drawing. Grown while it is laid out, read-only afterwards."""

    width: int = 0
    height: int = 0
    boxes: list[Box] = field(default_factory=list)
    ports: list[Port] = field(default_factory=list)
    wires: list[CableLine] = field(default_factory=list)


def picture(
    topology: Topology,
    marks: Mapping[str, Mark],
    *,
    rails: Collection[RdmaPort] = (),
    tcp: str = "",
    slots: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Picture:
    """The drawing of one node.

    marks: by PCI address, card's address without function, RDMA device, interface or slot
    rails: ports for the GPUs' traffic; tcp: the interface of the TCP side; slots: empty slots by switch's key
    """
    return _PictureLayout(topology, marks, set(rails), tcp, slots).whole()


class _PictureLayout:
    def __init__(
        self,
        topology: Topology,
        marks: Mapping[str, Mark],
        rails: Collection[RdmaPort],
        tcp: str,
        slots: Mapping[str, Sequence[str]],
    ) -> None:
        self.topology, self.marks, self.rails, self.tcp, self.slots = topology, marks, rails, tcp, slots
        above = SwitchPlaces(topology.switches).above
        # a card behind a switch without a port or an interface is a fault; elsewhere nobody misses it
        self.domains = domains_of(topology, lambda nic: bool(nic.ports or nic.interfaces or above(nic.key)))
        switches = [branch for domain in self.domains for branch in domain.branches if branch.switch]
        self.width = COLUMN_W + 2 * PAD * (max(map(_depth, switches), default=1) - 1)
        self.result = Picture()

    def whole(self) -> Picture:
        domains = [domain for domain in self.domains if domain.branches or domain.gpus or domain.cards] or [
            Domain(0, "", (), (), ())
        ]
        step, middle = self.width + 3 * PAD, PAD + CPU_H // 2
        self.result.height = PAD + max(self._column(domain, PAD + place * step) for place, domain in enumerate(domains))
        for x in range(PAD + self.width, PAD + self.width + (len(domains) - 1) * step, step):
            self.result.wires.append(CableLine(x1=x, y1=middle, x2=x + 3 * PAD, y2=middle, kind="sockets"))
        self.result.width = 2 * PAD + len(domains) * step - 3 * PAD
        return self.result

    def _column(self, domain: Domain, x: int) -> int:
        """Draw one NUMA domain; returns the y below it."""
        name = f"CPU {domain.number}" if domain.number >= 0 else "CPU not known"
        title = f"NUMA domain {domain.number}, CPUs {domain.cpulist or 'not read'}; {self.topology.cpu.name}"
        self.result.boxes.append(Box(x, PAD, self.width, CPU_H, "cpu", (name,), title))
        y = PAD + CPU_H + GAP * 2
        spine, last = x + STUB // 2, PAD + CPU_H
        for part in _parts(domain):
            if isinstance(part, Branch):
                height, key = self._switch(part, x + STUB, y, self.width - STUB), part.switch.key if part.switch else ""
            elif isinstance(part, Gpu):
                height, key = self._gpu(part, x + STUB, y), part.key
            else:
                height, key = self._card(part, x + STUB, y, self.width - STUB), part.key
            last, words = y + HEAD_H // 2, _link(self.topology.devices.get(key))
            self.result.wires.append(CableLine(x1=spine, y1=last, x2=x + STUB, y2=last, words=words))
            y += height + GAP * 2
        self.result.wires.append(CableLine(x1=spine, y1=PAD + CPU_H, x2=spine, y2=last))
        return y

    def _switch(self, branch: Branch, x: int, y: int, width: int) -> int:
        """A box with what is behind the switch in it, nested switches too; returns its height."""
        switch = branch.switch
        assert switch is not None
        place, inner = len(self.result.boxes), y + HEAD_H
        for below in branch.branches:
            inner += self._switch(below, x + PAD, inner, width - 2 * PAD) + GAP
        for number, gpu in enumerate(branch.gpus):
            self._gpu(gpu, x + PAD + number % _PER_ROW * (GPU_W + GAP), inner + number // _PER_ROW * (GPU_H + GAP))
        inner += -(-len(branch.gpus) // _PER_ROW) * (GPU_H + GAP)
        free = list(self.slots.get(switch.key, ()))
        for nic in branch.cards:
            height = self._card(nic, x + PAD, inner, CARD_W)
            if free:
                self._empty(free.pop(0), x + PAD + CARD_W + GAP, inner)
            inner += height + GAP
        for number, name in enumerate(free):
            self._empty(name, x + PAD + number % _PER_ROW * (SLOT_W + GAP), inner + number // _PER_ROW * (GPU_H + GAP))
        inner += -(-len(free) // _PER_ROW) * (GPU_H + GAP)
        height = inner - y + PAD - GAP
        lines = (f"PCIe switch {switch.address}", _link(switch))
        title = f"upstream port {switch.address} {part_name(self.topology.devices.get(switch.key))}, {_link(switch)}"
        mark = self.marks.get(switch.address)
        self.result.boxes.insert(place, Box(x, y, width, height, "switch", lines, title, mark))
        return height

    def _gpu(self, gpu: Gpu, x: int, y: int) -> int:
        """Returns its height."""
        slot = self.topology.devices[gpu.key].slot
        where = f"slot {slot}" if slot else short_address(gpu.address)
        title = f"{gpu.name or 'GPU'} at {gpu.address}, {_link(gpu)}{f', slot {slot}' if slot else ''}"
        lines = (f"GPU {gpu.index}" if gpu.index >= 0 else "GPU ?", "lost" if gpu.lost else where)
        mark = self.marks.get(gpu.address)
        self.result.boxes.append(Box(x, y, GPU_W, GPU_H, "gpu", lines, title, mark, gpu=gpu.index))
        return GPU_H

    def _card(self, nic: Card, x: int, y: int, width: int) -> int:
        """Returns its height."""
        first, address = nic.functions[0], card(nic.functions[0].address)
        lines: list[RdmaPort | Interface] = [*nic.ports, *nic.interfaces]
        height = CARD_HEAD + PORT_H * max(1, len(lines)) + 6
        slot = f"slot {first.slot}" if first.slot else ""
        head = f"{self._role(nic)}{slot and f' in {slot}'}  {short_address(address)}"
        title = f"{part_name(first)} at {address}, {_link(first)}{slot and f', {slot}'}"
        mark = self.marks.get(address) or self.marks.get(first.address)
        self.result.boxes.append(Box(x, y, width, height, "card", (head,), title, mark))
        x, y = x + PAD, y + CARD_HEAD + PORT_H // 2
        if not lines:
            words = f"driver {first.driver}" if first.driver else "no driver"
            self.result.ports.append(Port(x=x, y=y, state="idle", name="no port", detail=words))
        for number, line in enumerate(lines):
            at = y + PORT_H * number
            drawn = self._port(line, x, at) if isinstance(line, RdmaPort) else self._interface(line, x, at)
            self.result.ports.append(drawn)
        return height

    def _role(self, nic: Card) -> str:
        if any(port in self.rails for port in nic.ports):
            return "RDMA card"
        names = {port.netdev for port in nic.ports} | {interface.name for interface in nic.interfaces}
        bonds = {interface.bond for name in names if (interface := self.topology.interface(name))}
        return "main card (TCP)" if self.tcp and self.tcp in names | bonds else "network card"

    def _port(self, port: RdmaPort, x: int, y: int) -> Port:
        mark = self.marks.get(port.device) or self.marks.get(port.netdev)
        state, words = dot(port, self.topology, self.tcp)
        name = " ".join(filter(None, (port.device, port.netdev)))
        return Port(x=x, y=y, state=state, name=name, detail=words, mark=mark, device=port.device, number=port.port)

    def _interface(self, interface: Interface, x: int, y: int) -> Port:
        address = interface.ipv4[0].partition("/")[0] if interface.ipv4 else ""
        name = interface.name + (f" in {interface.bond}" if interface.bond else "")
        state, detail = ("other", address) if interface.up else ("down", "no link")
        return Port(x=x, y=y, state=state, name=name, detail=detail, mark=self.marks.get(interface.name))

    def _empty(self, name: str, x: int, y: int) -> None:
        mark, lines, title = self.marks.get(f"slot {name}"), (f"slot {name}", "empty"), f"slot {name}: nothing in it"
        self.result.boxes.append(Box(x, y, SLOT_W, GPU_H, "slot", lines, title, mark))


_DOTS = {PortFault.NO_LINK: "down", PortFault.UNREAD: "old"}


def dot(port: RdmaPort, topology: Topology, tcp: str = "") -> tuple[str, str]:
    """A port's state as a dot's colour (Port.state), and its address or fault. tcp: the interface of the TCP side, of
    whose port no more than a link is asked"""
    interface, fault = topology.interface(carrier(port, topology)), port_fault(port, topology)
    address = interface.ipv4[0].partition("/")[0] if interface and interface.ipv4 else ""
    if tcp and port.netdev == tcp and fault not in _DOTS:
        return "other", address
    return ("up", address) if fault is None else (_DOTS.get(fault, "idle"), fault.value)


def _parts(domain: Domain) -> Iterator[Branch | Gpu | Card]:
    """Top switches, then single things on root ports."""
    yield from (branch for branch in domain.branches if branch.switch)
    for branch in domain.branches:
        if not branch.switch:
            yield from branch.gpus
            yield from branch.cards
    yield from domain.gpus
    yield from domain.cards


def _depth(branch: Branch) -> int:
    return 1 + max(map(_depth, branch.branches), default=0)


def short_address(address: str) -> str:
    """An address without its domain where that is 0, as lspci writes it."""
    return address.removeprefix("0000:")


def _link(end: Switch | Gpu | PciDevice | None) -> str:
    """Of its link, or of what that can do where the link itself was not read."""
    if end is None:
        return ""
    link, can = (end.link, "") if end.link.width else (end.link_max, "can ")
    speed = f"{link.speed_gts:g} GT/s " if link.speed_gts else ""
    return f"{can}{speed}x{link.width}" if link.width else ""


def alike(first: Picture, other: Picture) -> bool:
    """Whether two drawings differ in nothing but addresses and what pointing at a thing tells."""
    return _essence(first) == _essence(other)


def without_addresses(drawn: Picture) -> Picture:
    """The drawing as it stands for several nodes."""
    worded = ("up", "other")
    return replace(drawn, ports=[replace(port, detail="") if port.state in worded else port for port in drawn.ports])


def _essence(drawn: Picture) -> object:
    return replace(without_addresses(drawn), boxes=[replace(box, title="") for box in drawn.boxes])


OLD = "old"
"""State of a thing of which nothing is known at this moment, because its node is silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """state: up, hot, bad, OLD, or '' where nothing is to be said. name: in place of the drawing's own, '' to keep it;
    words: of its figures; title: what else there is to know."""

    state: str
    name: str = ""
    words: str = ""
    title: str = ""


_DOT = {"up": "up", "hot": "idle", "bad": "down", OLD: OLD}
"""Colour of a port's dot, by state."""
_NOT_BY_LINK = ("idle", "other")
"""What a link alone does not change: a port that has no address, and one that is no rail."""


def lit(
    drawn: Picture, gpus: Mapping[int, LiveState], ports: Mapping[tuple[str, int], LiveState], *, old: bool = False
) -> Picture:
    """gpus by NVML's index, ports by RDMA device and number; what is in neither stays as it was drawn.

    old: nothing is known about the node at this moment
    """
    otherwise = LiveState(state=OLD) if old else None
    return replace(
        drawn,
        boxes=[_box(box, gpus.get(box.gpu, otherwise)) for box in drawn.boxes],
        ports=[_port(port, ports.get((port.device, port.number), otherwise)) for port in drawn.ports],
    )


def _box(box: Box, now: LiveState | None) -> Box:
    if now is None or box.kind != "gpu":
        return box
    first, second = box.lines
    title = "; ".join(filter(None, (f"{first}: {box.title}", now.title)))
    return replace(box, lines=(now.name or first, now.words or second), title=title, state=now.state)


def _port(port: Port, now: LiveState | None) -> Port:
    if now is None or (now.state == "up" and port.state in _NOT_BY_LINK):
        return port
    return replace(port, state=_DOT.get(now.state, port.state), detail=now.words or port.detail)
