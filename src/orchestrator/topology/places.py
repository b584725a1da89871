"""A node's parts in the places where they sit: NUMA domains, switches in each other, root ports, GPUs, cards.

The one model that the drawing on the screen and the one of the report are made from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.model.topology import Gpu, Interface, PciDevice, RdmaPort, Switch, Topology
from orchestrator.topology.distance import Distances
from orchestrator.topology.pci import bridges_above, nic_cards, sort_key
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


@dataclass(frozen=True, slots=True)
class Places:
    """Everything of a node. loose_gpus: those that NVML shows and sysfs does not; loose_ports: those of no PCI
    function (software RoCE)"""

    domains: tuple[Domain, ...]
    loose_gpus: tuple[Gpu, ...]
    loose_ports: tuple[RdmaPort, ...]


def places_of(topology: Topology, keep: Callable[[Card], bool] | None = None) -> Places:
    """keep: which network cards are wanted, all if not given; switches with nothing behind them are left out."""
    return _PlacesBuilder(topology, keep).all()


class _PlacesBuilder:
    def __init__(self, topology: Topology, keep: Callable[[Card], bool] | None) -> None:
        self.topology = topology
        self.devices = {device.key: device for device in topology.pci}
        self.switches = {switch.key: switch for switch in topology.switches}
        self.distances = Distances(topology)
        self.above = SwitchPlaces(topology.switches).above
        cards = [self._card(functions) for functions in nic_cards(topology).values()]
        self.cards: Mapping[str, Card] = {card.key: card for card in cards if keep is None or keep(card)}
        self.gpus: Mapping[str, Gpu] = {gpu.key: gpu for gpu in topology.gpus if gpu.key in self.devices}

    def all(self) -> Places:
        numbers = {domain.node for domain in self.topology.numa}
        numbers |= {self._numa(key) for key in (*self.gpus, *self.cards)}
        return Places(
            tuple(self._domain(number) for number in sorted(numbers)),
            tuple(gpu for gpu in self.topology.gpus if gpu.key not in self.devices),
            tuple(port for port in self.topology.rdma if port.key not in self.devices),
        )

    def _card(self, functions: tuple[PciDevice, ...]) -> Card:
        keys = [function.key for function in functions]
        ports = tuple(port for key in keys for port in self.topology.rdma if port.key == key)
        shown = {port.netdev for port in ports}
        bare = (one for key in keys for one in self.topology.interfaces if one.key == key and one.name not in shown)
        return Card(functions, ports, tuple(bare))

    def _numa(self, key: str) -> int:
        """Firmware of machines with one domain often names none: then there is no doubt."""
        number = self.distances.numa_node(key)
        return self.topology.numa[0].node if number < 0 and len(self.topology.numa) == 1 else number

    def _domain(self, number: int) -> Domain:
        cpulist = next((one.cpulist for one in self.topology.numa if one.node == number), "")
        switched: list[str] = []
        by_root: dict[str, list[str]] = {}
        for key in (*self.gpus, *self.cards):
            if self._numa(key) == number:
                if self.above(key):
                    switched.append(key)
                else:
                    bridges = bridges_above(key)
                    by_root.setdefault(bridges[-1] if bridges else "", []).append(key)
        direct = by_root.pop("", [])
        roots = (
            Branch(key.rpartition("/")[2], None, (), *self._leaves(by_root[key]))
            for key in sorted(by_root, key=self._order)
        )
        return Domain(number, cpulist, (*self._switches(switched, 0), *roots), *self._leaves(direct))

    def _switches(self, leaves: Iterable[str], depth: int) -> Iterator[Branch]:
        """The switches that lie `depth` levels below the CPU on the path to these leaves."""
        members: dict[str, list[str]] = {}
        for key in leaves:
            above = self.above(key)
            if len(above) > depth:
                members.setdefault(above[-1 - depth], []).append(key)
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
