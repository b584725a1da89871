"""One node as a tree of labels: NUMA domain, switch or root port, GPU and NIC, port. `cli` gives it colours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.model.topology import Gpu, Interface, Link, PciDevice, RdmaPort, Switch, Topology
from orchestrator.topology.names import part_name
from orchestrator.topology.network import Choice, gid_index, is_bonded
from orchestrator.topology.pci import bridges_above, card, sort_key
from orchestrator.topology.rdma import ports_by_card
from orchestrator.topology.switches import SwitchPlaces

_NETWORK_CLASS = 0x02


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A line of the drawing.

    kind:  node, numa, switch, root, gpu, nic, port, interface or note
    label: what it is and what it is worth
    fault: what is wrong with it, '' for nothing; for a human's eye, findings are made by rules
    """

    kind: str
    label: str
    fault: str = ""
    children: tuple[Tree, ...] = ()


def tree(topology: Topology, tcp: Choice | None = None) -> Tree:
    """The drawing of one node; tcp marks the interface that was chosen for the TCP side."""
    return _Drawing(topology, tcp).whole()


def summary(topology: Topology) -> str:
    """Counts of what a node has: '8 GPUs (NVIDIA L40S), 2 PCIe switches with 4 + 4 GPUs, ...'."""
    models = " + ".join(sorted({gpu.name or _gpu_part(gpu, topology) for gpu in topology.gpus}))
    active = sum(port.active for port in topology.rdma)
    parts = [
        _count(len(topology.gpus), "GPU") + (f" ({models})" if models else ""),
        _switch_words(topology),
        _count(len(nic_cards(topology)), "NIC"),
        f"{active} of {_count(len(topology.rdma), 'RDMA port')} active" if topology.rdma else "no RDMA port",
    ]
    return ", ".join(part for part in parts if part)


def nic_cards(topology: Topology) -> Mapping[str, tuple[PciDevice, ...]]:
    """{real path of the card without its function: its functions}, of everything that is a NIC.

    A NIC is of the network class, has an RDMA port, or has an interface of its own.
    """
    in_use = {port.key for port in topology.rdma} | {interface.key for interface in topology.interfaces}
    cards: dict[str, list[PciDevice]] = {}
    for device in topology.pci:
        if device.class_code >> 16 == _NETWORK_CLASS or device.key in in_use:
            cards.setdefault(card(device.key), []).append(device)
    return {key: tuple(functions) for key, functions in cards.items()}


def _switch_words(topology: Topology) -> str:
    groups = [
        count for switch in topology.switches if (count := sum(gpu.switch == switch.key for gpu in topology.gpus))
    ]
    if not groups:
        return "no PCIe switch above a GPU" if topology.gpus else ""
    return f"{_count(len(groups), 'PCIe switch', 'es')} with {' + '.join(map(str, groups))} GPUs"


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number} {what}{'' if number == 1 else plural}"


def _gpu_part(gpu: Gpu, topology: Topology) -> str:
    device = next((one for one in topology.pci if one.key == gpu.key), None)
    return part_name(device.vendor, device.device) if device else "unknown"


class _Drawing:
    def __init__(self, topology: Topology, tcp: Choice | None) -> None:
        self.topology = topology
        self.tcp = tcp.interface if tcp else ""
        self.devices = {device.key: device for device in topology.pci}
        self.places = SwitchPlaces(topology.switches)
        self.switches = {switch.key: switch for switch in topology.switches}
        self.cards = nic_cards(topology)
        self.ports = ports_by_card(topology.rdma)
        self.gpu_switches = {key for gpu in topology.gpus for key in self.places.above(gpu.key)}
        self.placed_cards = sum(
            1 for functions in self.cards.values() if self._is_rdma(functions) and self._near_gpus(functions[0].key)
        )

    def whole(self) -> Tree:
        topology = self.topology
        title = topology.node or topology.hostname or "node"
        if topology.hostname and topology.hostname != topology.node:
            title += f" ({topology.hostname})"
        if topology.driver:
            title += f"  driver {topology.driver}"
        children = [self._numa(number) for number in self._numa_numbers()]
        children += self._loose_gpus()
        children += [self._interface(one) for one in topology.interfaces if self._stands_alone(one)]
        if topology.nvml_error and topology.gpus:
            children.append(Tree(kind="note", label="NVML", fault=topology.nvml_error))
        return Tree(kind="node", label=f"{title}  {topology.cpu.name}".strip(), children=tuple(children))

    def _numa_numbers(self) -> list[int]:
        numbers = {domain.node for domain in self.topology.numa}
        numbers |= {self._numa_of(gpu.key) for gpu in self.topology.gpus if gpu.key in self.devices}
        numbers |= {self._numa_of(functions[0].key) for functions in self.cards.values()}
        return sorted(numbers)

    def _numa_of(self, key: str) -> int:
        """Firmware of machines with one domain often names none: then there is no doubt."""
        above = self.places.above(key)
        number = self.switches[above[-1]].numa_node if above else self.devices[key].numa_node
        return self.topology.numa[0].node if number < 0 and len(self.topology.numa) == 1 else number

    def _numa(self, number: int) -> Tree:
        domain = next((one for one in self.topology.numa if one.node == number), None)
        label = f"NUMA {number}" if number >= 0 else "NUMA domain not known"
        if domain and domain.cpulist:
            label += f"  CPUs {domain.cpulist}"
        leaves = [gpu.key for gpu in self.topology.gpus if gpu.key in self.devices and self._numa_of(gpu.key) == number]
        leaves += [functions[0].key for functions in self.cards.values() if self._numa_of(functions[0].key) == number]
        tops: dict[str, list[str]] = {}
        for key in leaves:
            above = self.places.above(key)
            root = bridges_above(key)
            tops.setdefault(above[-1] if above else (root[-1] if root else ""), []).append(key)
        children: list[Tree] = []
        for top in sorted(tops, key=lambda key: (key not in self.switches, sort_key(key.rpartition("/")[2]), key)):
            if top in self.switches:
                children.append(self._switch(self.switches[top], tops[top]))
            elif top:
                label_of_port = f"root port {top.rpartition('/')[2]}"
                children.append(Tree(kind="root", label=label_of_port, children=self._leaves(tops[top])))
            else:
                children += self._leaves(tops[top])
        return Tree(kind="numa", label=label, children=tuple(children))

    def _switch(self, switch: Switch, leaves: Iterable[str]) -> Tree:
        device = self.devices.get(switch.key)
        name = part_name(device.vendor, device.device) if device else ""
        below: dict[str, list[str]] = {}
        own: list[str] = []
        for key in leaves:
            above = self.places.above(key)
            position = above.index(switch.key)
            if position:
                below.setdefault(above[position - 1], []).append(key)
            else:
                own.append(key)
        inner = [self._switch(self.switches[key], members) for key, members in sorted(below.items())]
        link, fault = _link_words(switch.link, switch.link_max)
        words = _words("switch", switch.address, name, link)
        if switch.key in self.gpu_switches and not self._has_rdma_card(switch.key):
            fault = "; ".join(filter(None, (fault, "GPUs and no RDMA card" if self.topology.rdma else "")))
        return Tree(kind="switch", label=words, fault=fault, children=(*inner, *self._leaves(own)))

    def _has_rdma_card(self, switch: str) -> bool:
        return any(
            self._is_rdma(functions) and switch in self.places.above(functions[0].key)
            for functions in self.cards.values()
        )

    def _leaves(self, keys: Iterable[str]) -> tuple[Tree, ...]:
        wanted = set(keys)
        gpus = [self._gpu(gpu) for gpu in self.topology.gpus if gpu.key in wanted]
        cards = [self._nic(functions) for functions in self.cards.values() if functions[0].key in wanted]
        return (*gpus, *cards)

    def _loose_gpus(self) -> list[Tree]:
        """GPUs that NVML shows and sysfs does not."""
        return [self._gpu(gpu) for gpu in self.topology.gpus if gpu.key not in self.devices]

    def _gpu(self, gpu: Gpu) -> Tree:
        name = gpu.name or _gpu_part(gpu, self.topology)
        memory = f"{gpu.memory_total / 2**30:.1f} GiB" if gpu.memory_total else ""
        link, fault = _link_words(gpu.link, gpu.link_max, may_sleep=True)
        which = f"GPU {gpu.index}" if gpu.index >= 0 else "GPU ?"
        if gpu.lost:
            fault = f"lost: {gpu.lost}"
        elif gpu.index < 0:
            fault = "on the bus and unknown to NVML"
        return Tree(kind="gpu", label=_words(which, gpu.address, name, memory, link), fault=fault)

    def _nic(self, functions: tuple[PciDevice, ...]) -> Tree:
        first = functions[0]
        link, fault = _link_words(first.link, first.link_max)
        if not any(port.key == function.key for port in self.topology.rdma for function in functions):
            fault = ""  # a slow link is a fault where bandwidth matters
        slot = f"slot {first.slot}" if first.slot else ""
        label = _words("NIC", card(first.address), part_name(first.vendor, first.device), slot, link)
        if self._is_misplaced(functions):
            fault = "; ".join(filter(None, (fault, "on a root port, not behind a GPU switch")))
        children: list[Tree] = []
        for function in functions:
            ports = [port for port in self.topology.rdma if port.key == function.key]
            children += [self._port(port) for port in ports]
            shown = {port.netdev for port in ports}
            children += [
                self._interface(one)
                for one in self.topology.interfaces
                if one.key == function.key and one.name not in shown
            ]
        return Tree(kind="nic", label=label, fault=fault, children=tuple(children))

    def _is_rdma(self, functions: tuple[PciDevice, ...]) -> bool:
        """Meant for GPU traffic: has RDMA ports outside a bond, and does not carry the TCP side."""
        keys = {function.key for function in functions}
        mine = [port for port in self.topology.rdma if port.key in keys]
        if any(port.netdev == self.tcp for port in mine if self.tcp):
            return False
        return any(not is_bonded(port, self.topology) for port in mine)

    def _near_gpus(self, key: str) -> bool:
        return not self.gpu_switches.isdisjoint(self.places.above(key))

    def _is_misplaced(self, functions: tuple[PciDevice, ...]) -> bool:
        """A card for GPU traffic away from the GPUs' switches, while other cards or none are behind these."""
        if not self._is_rdma(functions) or self._near_gpus(functions[0].key) or not self.gpu_switches:
            return False
        return self.placed_cards > 0 or any(not self._has_rdma_card(switch) for switch in self.gpu_switches)

    def _port(self, port: RdmaPort) -> Tree:
        interface = self.topology.interface(port.netdev) if port.netdev else None
        gid = gid_index(port, self.topology)
        rate = f"{port.rate_gbps:g} Gb/s" if port.rate_gbps else ""
        state = port.state or "state unread"
        label = _words(port.device, f"port {port.port}", state, rate, port.link_layer, port.netdev)
        label = _words(label, *(interface.ipv4 if interface else ()), f"MTU {interface.mtu}" if interface else "")
        if gid.index is not None:
            label += f"  GID {gid.index}"
        fault = ""
        if not port.active:
            fault = f"no link ({port.phys_state})" if port.phys_state else "no link"
        elif gid.index is None and port.link_layer == "Ethernet" and not is_bonded(port, self.topology):
            fault = f"no RoCE v2 address: {gid.reason}"
        if interface and interface.bond:
            label += f"  part of {interface.bond}"
        if interface and interface.name == self.tcp and not interface.slaves:
            label += "  TCP side"
        return Tree(kind="port", label=label, fault=fault)

    def _interface(self, interface: Interface) -> Tree:
        speed = f"{interface.speed_mbps / 1000:g} Gb/s" if interface.speed_mbps else ""
        made_of = f"bond of {', '.join(interface.slaves)}" if interface.slaves else ""
        part_of = f"part of {interface.bond}" if interface.bond else ""
        role = "TCP side" if interface.name == self.tcp else ""
        state = interface.operstate if interface.operstate != "up" else ""
        label = _words(
            interface.name,
            made_of,
            *interface.ipv4,
            f"MTU {interface.mtu}" if interface.mtu else "",
            speed,
            state,
            part_of,
            role,
        )
        fault = "no link" if interface.physical and not interface.up and (interface.ipv4 or interface.bond) else ""
        return Tree(kind="interface", label=label, fault=fault)

    def _stands_alone(self, interface: Interface) -> bool:
        """Bonds, and what else has an address and no card: VLANs, bridges. Not the loopback."""
        if interface.name == "lo" or interface.key in self.devices:
            return False
        return bool(interface.slaves or interface.ipv4)


def _link_words(link: Link, most: Link, *, may_sleep: bool = False) -> tuple[str, str]:
    """A link in words, and what is wrong with it. An idle GPU lowers its speed and loses nothing by it."""
    if not link.width and not link.speed_gts:
        return "", ""
    words = f"{link.speed_gts:g} GT/s x{link.width}" if link.speed_gts else f"x{link.width}"
    faults = []
    if 0 < link.width < most.width:
        faults.append(f"x{link.width} of x{most.width}")
    if 0 < link.speed_gts < most.speed_gts:
        if may_sleep:
            words += f" (idle; can {most.speed_gts:g})"
        else:
            faults.append(f"{link.speed_gts:g} of {most.speed_gts:g} GT/s")
    return words, ", ".join(faults)


def _words(*words: str) -> str:
    return "  ".join(word for word in words if word)
