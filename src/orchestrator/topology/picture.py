"""A node as a drawing: boxes and lines with places in pixels, whatever draws them in the end.

One column a NUMA domain: the CPU on top, below it the switches with what is behind them, then the cards on root
ports. A line down the column's side is the CPU's PCIe; every switch and root-port card hangs off it by a stub.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.model.topology import Gpu, Interface, Link, PciDevice, RdmaPort, Switch, Topology
from orchestrator.topology.draw import nic_cards
from orchestrator.topology.names import part_name
from orchestrator.topology.pci import card, sort_key
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """kind: cpu, switch, gpu, card, slot (empty). title: all that is known of it, for whoever points at it."""

    x: int
    y: int
    w: int
    h: int
    kind: str
    lines: tuple[str, ...]
    title: str = ""
    mark: Mark | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One line of a card: a dot that shows its state (up, idle, down, other), its names, and its address or trouble."""

    x: int
    y: int
    state: str
    name: str
    detail: str
    mark: Mark | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
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
    wires: list[Wire] = field(default_factory=list)


def picture(
    topology: Topology,
    marks: Mapping[str, Mark],
    *,
    rails: Collection[RdmaPort] = (),
    tcp: str = "",
    slots: Mapping[str, Sequence[str]] | None = None,
) -> Picture:
    """The drawing of one node.

    marks: by PCI address, card's address without function, RDMA device, interface or slot
    rails: ports for the GPUs' traffic; tcp: the interface of the TCP side; slots: empty slots by switch's key
    """
    return _Drawing(topology, marks, set(rails), tcp, slots or {}).whole()


class _Drawing:
    def __init__(
        self,
        topology: Topology,
        marks: Mapping[str, Mark],
        rails: Collection[RdmaPort],
        tcp: str,
        slots: Mapping[str, Sequence[str]],
    ) -> None:
        self.topology = topology
        self.marks = marks
        self.rails = rails
        self.tcp = tcp
        self.slots = slots
        self.devices = {device.key: device for device in topology.pci}
        self.places = SwitchPlaces(topology.switches)
        self.interfaces: Mapping[str, Interface] = {interface.name: interface for interface in topology.interfaces}
        self.cards = [functions for functions in nic_cards(topology).values() if self._matters(functions)]
        self.result = Picture()

    def whole(self) -> Picture:
        domains = self._domains()
        height = 0
        for column, domain in enumerate(domains):
            height = max(height, self._column(domain, PAD + column * (COLUMN_W + 3 * PAD)))
        for column in range(len(domains) - 1):
            x = PAD + column * (COLUMN_W + 3 * PAD) + COLUMN_W
            middle = PAD + CPU_H // 2
            self.result.wires.append(Wire(x1=x, y1=middle, x2=x + 3 * PAD, y2=middle, kind="sockets"))
        self.result.width = 2 * PAD + len(domains) * COLUMN_W + max(0, len(domains) - 1) * 3 * PAD
        self.result.height = height + PAD
        return self.result

    def _domains(self) -> list[int]:
        found = {self._numa(gpu.key) for gpu in self.topology.gpus if gpu.key in self.devices}
        found |= {self._numa(functions[0].key) for functions in self.cards}
        return sorted(found) or [0]

    def _numa(self, key: str) -> int:
        above = self.places.above(key)
        if above:
            return next(switch.numa_node for switch in self.topology.switches if switch.key == above[-1])
        return self.devices[key].numa_node

    def _column(self, domain: int, x: int) -> int:
        """Draw one NUMA domain; returns the y below it."""
        cpus = next((one.cpulist for one in self.topology.numa if one.node == domain), "")
        name = f"CPU {domain}" if domain >= 0 else "CPU not known"
        title = f"NUMA domain {domain}, CPUs {cpus or 'not read'}; {self.topology.cpu.name}"
        self._box(x, PAD, COLUMN_W, CPU_H, "cpu", (name,), title)
        y = PAD + CPU_H + GAP * 2
        spine, last = x + STUB // 2, PAD + CPU_H
        for place in self._tops(domain):
            at = y + HEAD_H // 2
            height = self._switch(place, x + STUB, y) if isinstance(place, Switch) else self._roots(place, x + STUB, y)
            self._wire(spine, at, x + STUB, at, place.key if isinstance(place, Switch) else place[0].key)
            last = at
            y += height + GAP * 2
        self.result.wires.append(Wire(x1=spine, y1=PAD + CPU_H, x2=spine, y2=last))
        return y

    def _tops(self, domain: int) -> Iterator[Switch | tuple[PciDevice, ...]]:
        """Top switches with GPUs or cards behind them, then single things on root ports."""
        leaves = [gpu.key for gpu in self.topology.gpus if gpu.key in self.devices]
        leaves += [functions[0].key for functions in self.cards]
        mine = [key for key in leaves if self._numa(key) == domain]
        nearest = {self.places.nearest(key) for key in mine}
        yield from (switch for switch in self.topology.switches if switch.key in nearest)
        for key in sorted((key for key in mine if not self.places.above(key)), key=self._order):
            yield next((functions for functions in self.cards if functions[0].key == key), (self.devices[key],))

    def _order(self, key: str) -> tuple[int, str]:
        return sort_key(self.devices[key].address)

    def _switch(self, switch: Switch, x: int, y: int) -> int:
        gpus = [gpu for gpu in self.topology.gpus if gpu.switch == switch.key]
        cards = [functions for functions in self.cards if self.places.nearest(functions[0].key) == switch.key]
        place, inner = len(self.result.boxes), y + HEAD_H
        for number, gpu in enumerate(gpus):
            column, row = number % _PER_ROW, number // _PER_ROW
            self._gpu(gpu, x + PAD + column * (GPU_W + GAP), inner + row * (GPU_H + GAP))
        inner += -(-len(gpus) // _PER_ROW) * (GPU_H + GAP)
        free = list(self.slots.get(switch.key, ()))
        for functions in cards:
            height = self._card(functions, x + PAD, inner)
            if free:
                self._empty(free.pop(0), x + PAD + CARD_W + GAP, inner)
            inner += height + GAP
        for number, name in enumerate(free):
            self._empty(name, x + PAD + number % _PER_ROW * (SLOT_W + GAP), inner + number // _PER_ROW * (GPU_H + GAP))
        inner += -(-len(free) // _PER_ROW) * (GPU_H + GAP)
        height = inner - y + PAD - GAP
        device = self.devices.get(switch.key)
        part = part_name(device.vendor, device.device) if device else ""
        lines = (f"PCIe switch {switch.address}", _link(switch.link))
        box = Box(
            x=x,
            y=y,
            w=COLUMN_W - STUB,
            h=height,
            kind="switch",
            lines=lines,
            title=f"upstream port {switch.address} {part}, {_link(switch.link)}",
            mark=self.marks.get(switch.address),
        )
        self.result.boxes.insert(place, box)
        return height

    def _roots(self, functions: Sequence[PciDevice], x: int, y: int) -> int:
        gpu = next((gpu for gpu in self.topology.gpus if gpu.key == functions[0].key), None)
        if gpu:
            self._gpu(gpu, x, y)
            return GPU_H
        return self._card(functions, x, y, wide=True)

    def _gpu(self, gpu: Gpu, x: int, y: int) -> None:
        slot = self._slot(gpu.key)
        where = f"slot {slot}" if slot else gpu.address[5:]
        name = f"GPU {gpu.index}" if gpu.index >= 0 else "GPU ?"
        title = f"{gpu.name or 'GPU'} at {gpu.address}, {_link(gpu.link)}{f', slot {slot}' if slot else ''}"
        self._box(x, y, GPU_W, GPU_H, "gpu", (name, "lost" if gpu.lost else where), title, self.marks.get(gpu.address))

    def _card(self, functions: Sequence[PciDevice], x: int, y: int, *, wide: bool = False) -> int:
        ports = [port for function in functions for port in self.topology.rdma if port.key == function.key]
        shown = {port.netdev for port in ports}
        keys = {function.key for function in functions}
        bare = [one for one in self.topology.interfaces if one.key in keys and one.name not in shown]
        height = CARD_HEAD + PORT_H * max(1, len(ports) + len(bare)) + 6
        slot = self._slot(functions[0].key)
        role = self._role(ports, bare)
        head = f"{role}{f' in slot {slot}' if slot else ''}  {card(functions[0].address)[5:]}"
        part = part_name(functions[0].vendor, functions[0].device)
        title = f"{part} at {card(functions[0].address)}, {_link(functions[0].link)}{f', slot {slot}' if slot else ''}"
        mark = self.marks.get(card(functions[0].address)) or self.marks.get(functions[0].address)
        self._box(x, y, COLUMN_W - STUB if wide else CARD_W, height, "card", (head,), title, mark)
        if not ports and not bare:
            words = f"driver {functions[0].driver}" if functions[0].driver else "no driver"
            at = y + CARD_HEAD + PORT_H // 2
            self.result.ports.append(Port(x=x + PAD, y=at, state="idle", name="no port", detail=words))
        for number, port in enumerate(ports):
            self._port(port, x + PAD, y + CARD_HEAD + PORT_H * number + PORT_H // 2)
        for number, interface in enumerate(bare, len(ports)):
            self._interface(interface, x + PAD, y + CARD_HEAD + PORT_H * number + PORT_H // 2)
        return height

    def _role(self, ports: Sequence[RdmaPort], bare: Sequence[Interface]) -> str:
        if any(port in self.rails for port in ports):
            return "RDMA card"
        names = {port.netdev for port in ports} | {interface.name for interface in bare}
        bonds = {interface.bond for name in names if (interface := self.interfaces.get(name))}
        return "main card (TCP)" if self.tcp and self.tcp in names | bonds else "network card"

    def _port(self, port: RdmaPort, x: int, y: int) -> None:
        interface = self.interfaces.get(port.netdev)
        address = interface.ipv4[0].partition("/")[0] if interface and interface.ipv4 else ""
        mark = self.marks.get(port.device) or self.marks.get(port.netdev)
        if not port.active:
            state, words = "down", "no link"
        elif port.netdev == self.tcp:
            state, words = "other", address
        else:
            state, words = ("up", address) if address or port.link_layer == "InfiniBand" else ("idle", "no address")
        name = " ".join(filter(None, (port.device, port.netdev)))
        self.result.ports.append(Port(x=x, y=y, state=state, name=name, detail=words, mark=mark))

    def _interface(self, interface: Interface, x: int, y: int) -> None:
        address = interface.ipv4[0].partition("/")[0] if interface.ipv4 else ""
        part_of = f"in {interface.bond}" if interface.bond else ""
        name = " ".join(filter(None, (interface.name, part_of)))
        state, detail = ("other", address) if interface.up else ("down", "no link")
        mark = self.marks.get(interface.name)
        self.result.ports.append(Port(x=x, y=y, state=state, name=name, detail=detail, mark=mark))

    def _empty(self, name: str, x: int, y: int) -> None:
        mark = self.marks.get(f"slot {name}")
        self._box(x, y, SLOT_W, GPU_H, "slot", (f"slot {name}", "empty"), f"slot {name}: nothing in it", mark)

    def _slot(self, key: str) -> str:
        return self.devices[key].slot if key in self.devices else ""

    def _matters(self, functions: Sequence[PciDevice]) -> bool:
        """Has a port or an interface, or is behind a switch, where a card without either is a fault."""
        used = {port.key for port in self.topology.rdma} | {interface.key for interface in self.topology.interfaces}
        return any(function.key in used or self.places.above(function.key) for function in functions)

    def _wire(self, x1: int, y1: int, x2: int, y2: int, key: str) -> None:
        device = self.devices.get(key)
        self.result.wires.append(Wire(x1=x1, y1=y1, x2=x2, y2=y2, words=_link(device.link) if device else ""))

    def _box(
        self, x: int, y: int, w: int, h: int, kind: str, lines: tuple[str, ...], title: str, mark: Mark | None = None
    ) -> None:
        self.result.boxes.append(Box(x=x, y=y, w=w, h=h, kind=kind, lines=lines, title=title, mark=mark))


def _link(link: Link) -> str:
    if not link.width:
        return ""
    return f"{link.speed_gts:g} GT/s x{link.width}" if link.speed_gts else f"x{link.width}"


def alike(one: Picture, other: Picture) -> bool:
    """Whether two drawings differ in nothing but addresses and what pointing at a thing tells."""
    return _essence(one) == _essence(other)


def without_addresses(drawn: Picture) -> Picture:
    """The drawing as it stands for several nodes."""
    ports = [replace(port, detail="" if port.state in _WORKING else port.detail) for port in drawn.ports]
    return replace(drawn, ports=ports)


_WORKING = ("up", "other")


def _essence(drawn: Picture) -> object:
    boxes = [replace(box, title="") for box in drawn.boxes]
    return drawn.width, drawn.height, boxes, without_addresses(drawn).ports, drawn.wires
