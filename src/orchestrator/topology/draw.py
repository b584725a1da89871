"""A node's parts in the places where they sit (NUMA domains, switches in each other, root ports, GPUs, cards), and what
`discover` prints of them: a tree of labels, and JSON.

It shows facts and judges nothing: what is wrong comes in as marks, which rules make.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestrator.model.per_node import collected
from orchestrator.model.snapshot import NOT_RECORDED
from orchestrator.model.topology import Area, Gpu, Interface, PciDevice, PcieLink, RdmaPort, Switch, Topology
from orchestrator.model.words import counted
from orchestrator.topology.distance import Distances
from orchestrator.topology.network import PortFault, TcpChoice, gid_index, port_fault, rails
from orchestrator.topology.paths import paths, shape, stated_groups
from orchestrator.topology.pci import bridges_above, card, nic_cards, part_name, sort_key
from orchestrator.topology.stated import TEXT
from orchestrator.topology.switches import SwitchPlaces


@dataclass(frozen=True, slots=True)
class Card:
    """A network card: its functions, RDMA ports, and the interfaces that belong to no RDMA port."""

    functions: tuple[PciDevice, ...]
    ports: tuple[RdmaPort, ...]
    interfaces: tuple[Interface, ...]

    @property
    def key(self) -> str:
        """Of its first function."""
        return self.functions[0].key


@dataclass(frozen=True, slots=True)
class Branch:
    """A switch or a root port, and what is behind it.

    switch: None for a root port; branches: switches directly below
    """

    address: str
    switch: Switch | None
    branches: tuple[Branch, ...]
    gpus: tuple[Gpu, ...]
    cards: tuple[Card, ...]


@dataclass(frozen=True, slots=True)
class Domain:
    """One NUMA domain: -1 where the firmware does not say; gpus and cards: those directly on a root bus."""

    number: int
    cpulist: str
    branches: tuple[Branch, ...]
    gpus: tuple[Gpu, ...]
    cards: tuple[Card, ...]


def domains_of(topology: Topology, keep: Callable[[Card], bool] = lambda _: True) -> tuple[Domain, ...]:
    """Everything of a node that has a place in its PCI tree. keep: which network cards are wanted; switches with
    nothing behind them are left out."""
    return _PlacesBuilder(topology, keep).all()


class _PlacesBuilder:
    def __init__(self, topology: Topology, keep: Callable[[Card], bool]) -> None:
        self.topology = topology
        self.switches = {switch.key: switch for switch in topology.switches}
        self.distances = Distances(topology)
        self.above = SwitchPlaces(topology.switches).above
        cards = [self._card(functions) for functions in nic_cards(topology).values()]
        self.cards: Mapping[str, Card] = {card.key: card for card in cards if keep(card)}
        self.gpus: Mapping[str, Gpu] = {gpu.key: gpu for gpu in topology.gpus if gpu.key in topology.devices}

    def all(self) -> tuple[Domain, ...]:
        numbers = {domain.node for domain in self.topology.numa}
        numbers |= {self._numa(key) for key in (*self.gpus, *self.cards)}
        return tuple(self._domain(number) for number in sorted(numbers))

    def _card(self, functions: tuple[PciDevice, ...]) -> Card:
        keys = [function.key for function in functions]
        ports = tuple(port for key in keys for port in self.topology.rdma if port.key == key)
        shown = {port.netdev for port in ports}
        bare = (
            interface
            for key in keys
            for interface in self.topology.interfaces
            if interface.key == key and interface.name not in shown
        )
        return Card(functions, ports, tuple(bare))

    def _numa(self, key: str) -> int:
        """Firmware of machines with one domain often names none: then there is no doubt."""
        number = self.distances.numa_node(key)
        return self.topology.numa[0].node if number < 0 and len(self.topology.numa) == 1 else number

    def _domain(self, number: int) -> Domain:
        cpulist = next((domain.cpulist for domain in self.topology.numa if domain.node == number), "")
        mine = [key for key in (*self.gpus, *self.cards) if self._numa(key) == number]
        by_root = collected(((bridges_above(key) or ("",))[-1], key) for key in mine if not self.above(key))
        direct = by_root.pop("", [])
        roots = (
            Branch(key.rpartition("/")[2], None, (), *self._leaves(by_root[key]))
            for key in sorted(by_root, key=self._order)
        )
        return Domain(number, cpulist, (*self._switches(mine, 0), *roots), *self._leaves(direct))

    def _switches(self, leaves: Iterable[str], depth: int) -> Iterator[Branch]:
        """The switches that lie `depth` levels below the CPU on the path to these leaves."""
        members = collected((above[-1 - depth], key) for key in leaves if len(above := self.above(key)) > depth)
        for switch in sorted(members, key=self._order):
            own = [key for key in members[switch] if len(self.above(key)) == depth + 1]
            inner = tuple(self._switches(members[switch], depth + 1))
            yield Branch(self.switches[switch].address, self.switches[switch], inner, *self._leaves(own))

    def _order(self, key: str) -> tuple[tuple[int, str], str]:
        return sort_key(key.rpartition("/")[2]), key

    def _leaves(self, keys: Sequence[str]) -> tuple[tuple[Gpu, ...], tuple[Card, ...]]:
        return (
            tuple(self.gpus[key] for key in keys if key in self.gpus),
            tuple(self.cards[key] for key in keys if key in self.cards),
        )


Marks = Mapping[str, str]
"""What is wrong, by PCI address, card's address without function, RDMA device or interface."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLine:
    """A line of the drawing.

    kind:  node, numa, switch, root, gpu, nic, port, interface or note
    label: what it is and what it is worth
    fault: what is wrong with it, as the marks say; '' for nothing
    """

    kind: str
    label: str
    fault: str = ""
    children: tuple[TreeLine, ...] = ()


def tree(topology: Topology, tcp: TcpChoice | None = None, marks: Marks | None = None) -> TreeLine:
    """The drawing of one node; tcp marks the interface that was chosen for the TCP side."""
    return _TextDrawing(topology, tcp, marks or {}).whole()


def summary(topology: Topology) -> str:
    """Counts of what a node has: '8 GPUs (NVIDIA L40S), 2 PCIe switches with 4 + 4 GPUs, ...'."""
    models = " + ".join(sorted({gpu.name or _gpu_part(gpu, topology) for gpu in topology.gpus}))
    parts = [
        counted(len(topology.gpus), "GPU") + (f" ({models})" if models else ""),
        _switch_words(topology),
        counted(len(nic_cards(topology)), "NIC") if topology.pci or topology.stated is None else "",
        _port_words(topology),
        f"NCCL used TCP over {counted(len(topology.sockets), 'socket')}" if topology.sockets else "",
    ]
    return ", ".join(part for part in parts if part)


def _port_words(topology: Topology) -> str:
    ports = [port for port in topology.rdma if not port.virtual]
    words = counted(len(ports), "RDMA port") if ports else "no RDMA port"
    if any(lacking.path == TEXT for lacking in topology.lacks(Area.PORTS)) and not any(port.state for port in ports):
        return f"{words}, states not known" if ports else ""
    return f"{sum(port.active for port in ports)} of {words} active" if ports else words


def _switch_words(topology: Topology) -> str:
    seen = shape(topology)
    gpus = " + ".join(map(str, seen.stated if seen.stated is not None else (group.gpus for group in seen.groups)))
    if seen.stated is not None:
        return f"{gpus} GPUs behind a switch each" if gpus else ""
    if not gpus:
        return "no PCIe switch above a GPU" if topology.gpus else ""
    return f"{counted(len(seen.groups), 'PCIe switch', 'es')} with {gpus} GPUs"


def _gpu_part(gpu: Gpu, topology: Topology) -> str:
    device = topology.devices.get(gpu.key)
    if device:
        return part_name(device)
    return "" if topology.stated else "unknown"


class _TextDrawing:
    def __init__(self, topology: Topology, tcp: TcpChoice | None, marks: Marks) -> None:
        self.topology, self.tcp, self.marks = topology, tcp.interface if tcp else "", marks

    def whole(self) -> TreeLine:
        topology = self.topology
        cardless = [
            interface
            for interface in topology.interfaces
            if interface.name != "lo" and interface.key not in topology.devices
        ]
        others = [
            self._interface(interface) for interface in cardless if interface.slaves or interface.ipv4
        ]  # bonds, VLANs, bridges
        children = [*map(self._domain, domains_of(topology)), *self._loose(), *others]
        if topology.nvml_error and topology.gpus:
            children.append(TreeLine(kind="note", label=f"NVML: {topology.nvml_error}"))
        label = f"{_title(topology)}  {topology.cpu.name}".strip()
        return TreeLine(kind="node", label=label, children=tuple(children))

    def _loose(self) -> list[TreeLine]:
        """What has no place in the PCI tree; a pasted text may state what of it shares a switch."""
        known, topology = self.topology.devices, self.topology
        lines = {f"GPU{gpu.index}": self._gpu(gpu) for gpu in topology.gpus if gpu.key not in known}
        lines |= {port.device: self._port(port) for port in topology.rdma if port.key not in known}
        drawn = []
        for group in stated_groups(topology) if topology.stated else ():
            children = tuple(lines.pop(name) for name in (*group.gpus, *group.nics) if name in lines)
            drawn.append(TreeLine(kind="switch", label="behind one switch (PIX or PXB)", children=children))
        return [*drawn, *lines.values()]

    def _fault(self, *names: str) -> str:
        return "; ".join(dict.fromkeys(self.marks[name] for name in names if self.marks.get(name)))

    def _domain(self, domain: Domain) -> TreeLine:
        label = f"NUMA {domain.number}" if domain.number >= 0 else "NUMA domain not known"
        label += f"  CPUs {domain.cpulist}" if domain.cpulist else ""
        return TreeLine(kind="numa", label=label, children=self._inside(domain))

    def _branch(self, branch: Branch) -> TreeLine:
        kind, label, switch = "root", f"root port {branch.address}", branch.switch
        if switch is not None:
            name = part_name(self.topology.devices.get(switch.key))
            kind, label = "switch", _words("switch", branch.address, name, _link_words(switch.link, switch.link_max))
        return TreeLine(kind=kind, label=label, fault=self._fault(branch.address), children=self._inside(branch))

    def _inside(self, part: Domain | Branch) -> tuple[TreeLine, ...]:
        return (*map(self._branch, part.branches), *map(self._gpu, part.gpus), *map(self._nic, part.cards))

    def _gpu(self, gpu: Gpu) -> TreeLine:
        name = gpu.name or _gpu_part(gpu, self.topology)
        memory = f"{gpu.memory_total / 2**30:.1f} GiB" if gpu.memory_total else ""
        which = f"GPU {gpu.index}" if gpu.index >= 0 else "GPU ?"
        state = f"lost: {gpu.lost}" if gpu.lost else ""
        if gpu.index < 0 and not gpu.lost and self.topology.nvml_error != NOT_RECORDED:
            state = "on the bus, not shown by NVML"
        label = _words(which, gpu.address, name, memory, _link_words(gpu.link, gpu.link_max, may_sleep=True), state)
        return TreeLine(kind="gpu", label=label, fault=self._fault(gpu.address))

    def _nic(self, nic: Card) -> TreeLine:
        first = nic.functions[0]
        slot = f"slot {first.slot}" if first.slot else ""
        virtual = sum(device.virtual and device.parent == first.parent for device in self.topology.pci)
        label = _words(
            "NIC",
            card(first.address),
            part_name(first),
            slot,
            _link_words(first.link, first.link_max),
            counted(virtual, "virtual function") if virtual else "",
        )
        children = (
            *(self._port(port) for port in nic.ports),
            *(self._interface(interface) for interface in nic.interfaces),
        )
        fault = self._fault(card(first.address), *(function.address for function in nic.functions))
        return TreeLine(kind="nic", label=label, fault=fault, children=children)

    def _port(self, port: RdmaPort) -> TreeLine:
        interface = self.topology.interface(port.netdev) if port.netdev else None
        gid = gid_index(port, self.topology)
        rate = f"{port.rate_gbps:g} Gb/s" if port.rate_gbps else ""
        label = _words(port.device, f"port {port.port}", _port_state(port), rate, port.link_layer, port.netdev)
        label = _words(label, *(interface.ipv4 if interface else ()), f"MTU {interface.mtu}" if interface else "")
        if gid.index is not None:
            label += f"  GID {gid.index}"
        if interface and interface.bond:
            label += f"  part of {interface.bond}"
        if interface and interface.name == self.tcp and not interface.slaves:
            label += "  TCP side"
        return TreeLine(kind="port", label=label, fault=self._fault(port.device, port.netdev))

    def _interface(self, interface: Interface) -> TreeLine:
        speed = f"{interface.speed_mbps / 1000:g} Gb/s" if interface.speed_mbps else ""
        label = _words(
            interface.name,
            f"bond of {', '.join(interface.slaves)}" if interface.slaves else "",
            *interface.ipv4,
            f"MTU {interface.mtu}" if interface.mtu else "",
            speed,
            interface.operstate if interface.operstate != "up" else "",
            f"part of {interface.bond}" if interface.bond else "",
            "TCP side" if interface.name == self.tcp else "",
        )
        return TreeLine(kind="interface", label=label, fault=self._fault(interface.name))


def _link_words(link: PcieLink, most: PcieLink, *, may_sleep: bool = False) -> str:
    """A link as text, and what it can do if that is more, or all that is known. An idle GPU lowers its speed at no
    cost: what it can do stands first."""
    if link == PcieLink():
        return f"can {_link_words(most, most)}" if most != PcieLink() else ""
    words = link.words
    slower, narrower = 0 < link.speed_gts < most.speed_gts, 0 < link.width < most.width
    if may_sleep and slower and not narrower:
        return f"{replace(link, speed_gts=most.speed_gts).words} (idle: {link.speed_gts:g})"
    limits = []
    if slower:
        limits.append(f"{most.speed_gts:g}")
    if narrower:
        limits.append(f"x{most.width}")
    if limits:
        words += f" (can {' '.join(limits)})"
    return words


def _title(topology: Topology) -> str:
    """A node's name, its hostname where that is another, and the driver's version."""
    title = topology.node or topology.hostname or "node"
    if topology.hostname not in ("", topology.node):
        title += f" ({topology.hostname})"
    if topology.driver:
        title += f"  driver {topology.driver}"
    return title


def _port_state(port: RdmaPort) -> str:
    if not port.state:
        return "state unread"
    return port.state if port.active or not port.phys_state else f"{port.state} ({port.phys_state})"


def _words(*words: str) -> str:
    return "  ".join(word for word in words if word)


def topology_json(topology: Topology, tcp: TcpChoice | None = None) -> dict[str, Any]:
    """One node. Addresses are PCI addresses; `switch` is the address of the switch above, null on a root port."""
    above = {switch.key: switch.address for switch in topology.switches}
    usable = {rail.port.name for rail in rails(topology, tcp)}
    return {
        "name": topology.node,
        "hostname": topology.hostname,
        "summary": summary(topology),
        "driver": topology.driver or None,
        "nvml_error": topology.nvml_error or None,
        "cpu": asdict(topology.cpu),
        "numa": [asdict(domain) for domain in topology.numa],
        "switches": [
            _without(switch, "parent_switch", "merged_into")
            | {"above": above.get(switch.parent_switch), "part_of": above.get(switch.merged_into)}
            for switch in topology.switches
        ],
        "gpus": [_gpu_json(gpu, above) for gpu in topology.gpus],
        "rdma_ports": [
            _without(port, "gids", "gids_recorded", "virtual")
            | {"switch": above.get(port.switch), **_usable(port, topology, usable)}
            for port in topology.rdma
        ],
        "interfaces": [_interface_json(interface) for interface in topology.interfaces],
        "paths": paths_json(topology),
        "tcp": asdict(tcp) if tcp else None,
    }


def _gpu_json(gpu: Gpu, above: Mapping[str, str]) -> dict[str, Any]:
    return _without(gpu) | {"switch": above.get(gpu.switch), "sm": gpu.sm or None, "lost": gpu.lost or None}


def _interface_json(interface: Interface) -> dict[str, Any]:
    texts = {"address": interface.address or None, "bond": interface.bond or None}
    return _without(interface, "carrier", "physical") | texts


def paths_json(topology: Topology) -> list[dict[str, Any]]:
    """Every pair of GPUs and of a GPU and a NIC once; type as NCCL names it, null where a PCI function is unknown."""
    return [
        {"from": pair.one, "to": pair.other, "type": pair.type.name if pair.type is not None else None}
        for pair in paths(topology)
    ]


def _without(part: Switch | Gpu | RdmaPort | Interface, *names: str) -> dict[str, Any]:
    """All its fields but its key and these."""
    return {name: value for name, value in asdict(part).items() if name not in ("key", *names)}


def _usable(port: RdmaPort, topology: Topology, usable: Collection[str]) -> dict[str, Any]:
    gid, fault = gid_index(port, topology), port_fault(port, topology)
    tables = port.gids_recorded or port.link_layer == "InfiniBand"
    not_known = fault is PortFault.UNREAD or not (fault or tables)
    return {"gid_index": gid.index, "gid_reason": gid.reason, "rail": None if not_known else port.name in usable}
