"""What a rule gets: every node that answered, with its part of the inventory."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from orchestrator.doctor.rules.support.roles import Roles, roles
from orchestrator.model.inventory import GangSpec, NodeSpec
from orchestrator.model.per_node import FEWEST_FOR_A_MAJORITY, collected, majority
from orchestrator.model.profile import ModelProfile, Stack
from orchestrator.model.snapshot import NOT_RECORDED, Snapshot, part
from orchestrator.model.topology import NETWORKS, Gpu, Interface, PciDevice, RdmaPort, Switch, Topology
from orchestrator.planning.choices import tcp_choices
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.looks import Trial
from orchestrator.protocol.planned import Layout
from orchestrator.topology.gpus import Machine, nvml_devices
from orchestrator.topology.network import TcpChoice, usable_rails
from orchestrator.topology.pci import has_made_up, normal_address, number, sort_key
from orchestrator.topology.rdma import card_of
from orchestrator.topology.stated import pasted, texts
from orchestrator.topology.switches import SwitchPlaces, slotted_switches

V = TypeVar("V", bound=Hashable)
NEWEST_NCCL = (2, 30, 7)
_IPV4 = "/proc/sys/net/ipv4/conf"
_HYPERVISOR = re.compile(r"^flags\s*:.*\bhypervisor\b", re.MULTILINE)


class Slot(NamedTuple):
    """Where a rail port sits, comparable between nodes of one kind; switch 0 is a root port."""

    switch: int
    card: int
    port: int

    def __str__(self) -> str:
        where = f"switch {self.switch}" if self.switch else "a root port"
        return f"port {self.port} of card {self.card} behind {where}"


class Input(Enum):
    """Where facts come from: the node itself, `discover --save`, a copy of /sys, NCCL's XML, what tools printed.

    as_root: the fix where root alone can read something; again: where something was not recorded
    """

    LIVE = (
        "set `ansible_become: true` in the inventory; only root can read it",
        "read it yourself on the node; `l40s-deploy discover --save snapshots` shows what was readable",
    )
    SNAPSHOT = (
        "save the snapshot again with ansible_become: true: `l40s-deploy discover --save snapshots`",
        "save the snapshot again: `l40s-deploy discover --save snapshots`",
    )
    RECORDING = (
        (
            "record the machine again as root: `sudo hwloc-gather-topology topology`, or"
            " `l40s-deploy discover --save snapshots` with ansible_become: true"
        ),
        "`l40s-deploy discover --save snapshots` on the running machine records it",
    )
    XML = (
        "NCCL's file has no such data: run `l40s-deploy doctor` on the node itself, with ansible_become: true",
        "NCCL's file has no such data: run `l40s-deploy doctor` on the node itself",
    )
    PASTED = (
        "run `l40s-deploy doctor` on the node itself, with ansible_become: true",
        "run `l40s-deploy doctor` on the node itself; `l40s-deploy init` makes the inventory for it",
    )

    def __init__(self, as_root: str, again: str) -> None:
        self.as_root = as_root
        self.again = again


@dataclass(frozen=True)
class Node(Machine):
    """One node that answered, with what rules ask of it again and again.

    tcp: its interface for rendezvous and services; None where the gang's nodes share no network
    saved: its facts were read from files, not from the node
    stack: that it is looked at for, None where none is known
    layout: that its gang runs or is planned in, None where nobody knows
    served: the model that is planned on its gang, and its layout; None where nothing is planned
    alone: its gang has no other node by the inventory, whether it answered or not
    """

    snapshot: Snapshot
    tcp: TcpChoice | None
    saved: bool = False
    stack: Stack | None = None
    layout: Layout | None = None
    served: tuple[ModelProfile, Layout] | None = None
    alone: bool = False

    @cached_property
    def input(self) -> Input:
        """What its facts were read from."""
        if pasted(self.snapshot):
            return Input.PASTED
        if self.snapshot.nvml.get("error") == NOT_RECORDED:
            return Input.RECORDING if self.snapshot.files else Input.XML
        return Input.SNAPSHOT if self.saved else Input.LIVE

    @property
    def tcp_side(self) -> str:
        """The interface of its TCP side, '' where there is none."""
        return self.tcp.interface if self.tcp else ""

    @cached_property
    def is_guest(self) -> bool:
        """Whether it is a virtual machine: its processor says so (x86 only), or a function that no board has."""
        if _HYPERVISOR.search(self.snapshot.text("/proc/cpuinfo")) or pasted(self.snapshot).get("guest") is True:
            return True
        return has_made_up(self.topology)

    @property
    def nccl(self) -> tuple[int, ...]:
        """NCCL's version of its stack; the newest known one where no stack is known."""
        return nccl_of(self.stack)

    @property
    def driver_lines(self) -> tuple[str, ...]:
        """The drivers' messages of lost hardware since the last boot, oldest first, as the kernel's log or a text has
        them."""
        return texts(part(self.snapshot.host, "kernel_log").get("xid"))

    @property
    def log_of_drivers(self) -> str:
        """What has them."""
        return "the text" if self.input is Input.PASTED else "/dev/kmsg"

    @property
    def kernel_release(self) -> str:
        """As `uname -r` says, '' where unknown. The file is the looked-at machine's own; a machine that is recorded
        or shown below another root is read by a kernel that is not its own."""
        release = part(self.snapshot.host, "uname").get("release")
        return self.snapshot.text("/proc/sys/kernel/osrelease") or str(release or "")

    @property
    def product(self) -> str:
        """The machine's maker and model as its firmware names them, '' where unknown."""
        names = (self.snapshot.text(f"/sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name"))
        return " ".join(filter(None, names))

    @cached_property
    def devices(self) -> Mapping[str, PciDevice]:
        """PCI functions by key."""
        return {device.key: device for device in self.topology.pci}

    @cached_property
    def interfaces(self) -> Mapping[str, Interface]:
        """Interfaces by name."""
        return {interface.name: interface for interface in self.topology.interfaces}

    @property
    def placed(self) -> list[Gpu]:
        """GPUs whose place on the PCI bus is known."""
        return [gpu for gpu in self.topology.gpus if gpu.key in self.devices]

    @cached_property
    def places(self) -> SwitchPlaces:
        """Which switches are above a function."""
        return SwitchPlaces(self.topology.switches)

    @cached_property
    def gpu_switches(self) -> tuple[Switch, ...]:
        """The switches that GPUs are plugged in behind, in order of address; a switch on a GPU's own card is none."""
        return slotted_switches(self.topology, self.places)

    @cached_property
    def roles(self) -> Roles:
        """What the RDMA ports are for."""
        return roles(self.topology, self.gpu_switches, self.tcp_side, {port.device for port in self.named_ports})

    @property
    def rail_ports(self) -> tuple[RdmaPort, ...]:
        """RDMA ports that are there for the GPUs' traffic, whatever state they are in; see roles."""
        return self.roles.rails

    @property
    def endpoints(self) -> tuple[Gpu | RdmaPort, ...]:
        """The ends of the gang's traffic on the PCI bus: every GPU, and the rail ports."""
        return (*self.topology.gpus, *self.rail_ports)

    @cached_property
    def rail_places(self) -> Mapping[Slot, RdmaPort]:
        """Rail ports by their place: which of the GPUs' switches, which card behind it, which port of that card."""
        order = {switch.key: number for number, switch in enumerate(self.gpu_switches, 1)}
        cards, places = dict[tuple[int, str], int](), dict[Slot, RdmaPort]()
        for port in sorted(self.rail_ports, key=lambda port: (sort_key(port.address), port.device, port.port)):
            switch = next((order[key] for key in self.places.above(port.key) if key in order), 0)
            place = cards.setdefault((switch, card_of(port)), 1 + sum(taken == switch for taken, _ in cards))
            number = 1 + sum(slot[:2] == (switch, place) for slot in places)
            places[Slot(switch, place, number)] = port
        return places

    @cached_property
    def usable(self) -> tuple[RdmaPort, ...]:
        """RDMA ports that can carry the gang's traffic now."""
        return tuple(rail.port for rail in usable_rails(self.topology, self.tcp_side))

    @cached_property
    def nvml_devices(self) -> tuple[Mapping[str, Any], ...]:
        """NVML's data of each GPU."""
        return tuple(nvml_devices(self.snapshot.nvml))

    def ipv4_setting(self, netdev: str, name: str) -> int:
        """A setting of net.ipv4.conf: the kernel takes the larger of `all` and the interface's own."""
        return max(number(self.snapshot.text(f"{_IPV4}/{scope}/{name}")) for scope in ("all", netdev))

    def hears_itself(self, netdev: str) -> bool:
        """Whether Linux takes a packet that comes in by this interface from an address of the same machine, and answers
        its ARP: not by default (net/ipv4/fib_frontend.c, fib_validate_source), and not where it is not known."""
        if any(self.snapshot.unread(f"{_IPV4}/{scope}/rp_filter") for scope in ("all", netdev)):
            return False
        return self.ipv4_setting(netdev, "accept_local") >= 1 and self.ipv4_setting(netdev, "rp_filter") != 1

    def above(self, key: str) -> PciDevice | None:
        """The bridge above a PCI function, None on a root bus."""
        device = self.devices.get(key)
        return self.devices.get(device.parent) if device and device.parent else None


@dataclass(frozen=True)
class Cluster:
    """The nodes that answered. `specs` may name more nodes than `topologies`: those did not answer.

    trials: what the nodes could reach on each other; empty where nobody tried (offline)
    stacks: the stack that each node is looked at for, by node name; those of no known stack are missing
    served: the model that is planned on a gang, and its layout; empty where nothing is planned
    layouts, models: of each gang, those that run or are planned, by its name; empty where nobody knows
    saved: the facts were read from files, not from the nodes
    """

    topologies: Mapping[str, Topology]
    snapshots: Mapping[str, Snapshot]
    specs: Mapping[str, NodeSpec]
    trials: tuple[Trial, ...] = ()
    stacks: Mapping[str, Stack] = field(default_factory=dict)
    served: Mapping[str, tuple[ModelProfile, Layout]] = field(default_factory=dict)
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    saved: bool = False

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every node that answered, in the inventory's order."""
        return tuple(
            Node(
                spec,
                topology,
                self.snapshots[name],
                self.tcp.get(name),
                self.saved,
                stack=self.stacks.get(name),
                layout=self.layouts.get(spec.gang),
                served=self.served.get(spec.gang),
                alone=sum(other.gang == spec.gang for other in self.specs.values()) < 2,
            )
            for name, topology in self.topologies.items()
            for spec in (self.specs[name],)
        )

    @cached_property
    def gangs(self) -> tuple[tuple[Node, ...], ...]:
        """The nodes that answered, gang by gang."""
        return tuple(map(tuple, collected((node.spec.gang, node) for node in self.nodes).values()))

    def without(self, names: Collection[str]) -> Cluster:
        """The same as if these nodes had not answered."""
        left = {name: topology for name, topology in self.topologies.items() if name not in names}
        return replace(self, topologies=left)

    @cached_property
    def tcp(self) -> Mapping[str, TcpChoice]:
        """Each node's TCP side, gang by gang; a gang whose nodes share no network has none, nor a node whose networks
        were not read."""
        choices: dict[str, TcpChoice] = {}
        for gang in gangs_of(
            self.specs[name] for name, topology in self.topologies.items() if not topology.lacks(*NETWORKS)
        ):
            with contextlib.suppress(InputError):
                choices.update(tcp_choices(gang, self.topologies))
        return choices

    @cached_property
    def peers(self) -> tuple[tuple[Node, ...], ...]:
        """Nodes that ought to be alike: each gang of three or more, and all nodes of smaller gangs together."""
        large = [gang for gang in self.gangs if len(gang) >= FEWEST_FOR_A_MAJORITY]
        rest = tuple(node for gang in self.gangs if len(gang) < FEWEST_FOR_A_MAJORITY for node in gang)
        return tuple((*large, rest) if rest else large)

    def differing(self, fact: Callable[[Node], V | None]) -> Iterator[tuple[str, Mapping[str, V], V | None]]:
        """For each group of peers that differ in a fact, as far as it is known of them: every odd one with what each
        has, by name, and what most have; '' and None, once, where no value has a majority."""
        for group in self.peers:
            values = {node.name: value for node in group if (value := fact(node)) is not None}
            if most := majority(values):
                yield from ((name, values, most[0]) for name in most[1])
            elif len(set(values.values())) > 1:
                yield "", values, None


def nccl_of(stack: Stack | None) -> tuple[int, ...]:
    """NCCL's version of a stack; the newest known one where its file states none."""
    numbers = (stack.nccl_version if stack else "").split(".")
    return tuple(map(int, numbers)) if all(part.isdecimal() for part in numbers) else NEWEST_NCCL


def gangs_of(specs: Iterable[NodeSpec]) -> list[GangSpec]:
    """The gangs that these nodes make up, each in node-rank order."""
    return [
        GangSpec(name=name, nodes=tuple(sorted(nodes, key=lambda spec: spec.node_rank)))
        for name, nodes in collected((spec.gang, spec) for spec in specs).items()
    ]


def in_place(
    group: Sequence[Node], fact: Callable[[Node, RdmaPort], V | None]
) -> Iterator[tuple[Node, dict[Slot, tuple[RdmaPort, V, V]]]]:
    """Each node with its rail ports of which a fact is known: {place: (port, own value, that of most nodes in that
    place)}; its own twice where no other has a majority there."""
    values = {
        node.name: {place: value for place, port in node.rail_places.items() if (value := fact(node, port)) is not None}
        for node in group
    }
    by_place = collected((place, (name, value)) for name, known in values.items() for place, value in known.items())
    common = {place: most[0] for place, words_by_node in by_place.items() if (most := majority(dict(words_by_node)))}
    for node in group:
        known = values[node.name]
        yield node, {place: (node.rail_places[place], own, common.get(place, own)) for place, own in known.items()}


def odd_in_place(
    group: Sequence[Node], fact: Callable[[Node, RdmaPort], V | None]
) -> Iterator[tuple[Node, dict[Slot, tuple[RdmaPort, V, V]]]]:
    """Those of which it differs from what most have, and their nodes."""
    for node, places in in_place(group, fact):
        if odd := {place: seen for place, seen in places.items() if seen[1] != seen[2]}:
            yield node, odd


def port_devices(port: RdmaPort) -> tuple[str, ...]:
    """A port's names for a finding: the RDMA device, and its network interface where it has one."""
    return (port.device, port.netdev) if port.netdev else (port.device,)


def gpu_address(device: Mapping[str, Any]) -> str:
    """PCI address of what NVML described, as sysfs writes it; '' where it gave none."""
    address = device.get("pci_bus_id")
    return normal_address(address) if isinstance(address, str) else ""
