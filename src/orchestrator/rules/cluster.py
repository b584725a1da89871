"""What a rule looks at: every node's topology and raw snapshot, beside what the inventory wants of it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from orchestrator.model.errors import InputError
from orchestrator.model.inventory import GangSpec, NodeSpec
from orchestrator.model.reach import Trial
from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import PciDevice, RdmaPort, Topology
from orchestrator.planning.network import TcpChoice, tcp_choices, usable_ports

V = TypeVar("V", bound=Hashable)


@dataclass(frozen=True)
class Cluster:
    """The nodes that answered. `specs` may name more nodes than `topologies`: those did not answer.

    trials: what the nodes could reach on each other; empty where nobody tried (offline)
    """

    topologies: Mapping[str, Topology]
    snapshots: Mapping[str, Snapshot]
    specs: Mapping[str, NodeSpec]
    trials: tuple[Trial, ...] = ()

    @property
    def nodes(self) -> Iterator[tuple[str, Topology, Snapshot]]:
        """Name, topology and snapshot of every node that answered, in the inventory's order."""
        for name, topology in self.topologies.items():
            yield name, topology, self.snapshots[name]

    @cached_property
    def tcp(self) -> Mapping[str, TcpChoice]:
        """Each node's TCP side, gang by gang; a gang whose nodes share no network has none."""
        found: dict[str, TcpChoice] = {}
        for gang in gangs_of(self.specs[name] for name in self.topologies):
            with contextlib.suppress(InputError):
                found.update(tcp_choices(gang, self.topologies))
        return found

    @cached_property
    def usable(self) -> Mapping[str, tuple[RdmaPort, ...]]:
        """Each node's RDMA ports that can carry the gang's traffic now."""
        return {
            name: usable_ports(topology, self.tcp[name].interface if name in self.tcp else "")
            for name, topology in self.topologies.items()
        }

    def odd_ones(self, fact: Callable[[Topology, Snapshot], V | None]) -> tuple[V, dict[str, V]] | None:
        """What most nodes have, and the nodes that have something else. None where all agree or two cannot
        be told apart from a majority (fewer than three nodes that know)."""
        values = {
            name: value for name, topology, snapshot in self.nodes if (value := fact(topology, snapshot)) is not None
        }
        return majority(values)


def gangs_of(specs: Iterable[NodeSpec]) -> list[GangSpec]:
    """The gangs that these nodes make up, each in node-rank order."""
    members: dict[str, list[NodeSpec]] = {}
    for spec in specs:
        members.setdefault(spec.gang, []).append(spec)
    return [
        GangSpec(name=name, nodes=tuple(sorted(nodes, key=lambda spec: spec.node_rank)))
        for name, nodes in members.items()
    ]


def majority(values: Mapping[str, V]) -> tuple[V, dict[str, V]] | None:
    """The value that more than half of at least three nodes have, with the exceptions; None where there are none."""
    if len(values) < 3:
        return None
    (common, count), *_ = Counter(values.values()).most_common(1)
    odd = {name: value for name, value in values.items() if value != common}
    return (common, odd) if odd and count * 2 > len(values) else None


def card(address: str) -> str:
    """A card's address without its function: ports .0 and .1 are one card (NCCL net_ib does the same)."""
    return address.rpartition(".")[0]


def gpu_port(port: RdmaPort, topology: Topology) -> bool:
    """Whether an RDMA port is meant for GPU traffic: not a bond's slave and no management card.

    The main NIC's ports are in a bond or carry the TCP side; every other RDMA port is there for the GPUs.
    """
    interface = topology.interface(port.netdev) if port.netdev else None
    return not (interface is not None and (interface.bond or interface.slaves))


def above(device: PciDevice, topology: Topology) -> PciDevice | None:
    """The bridge above a PCI function, None on a root bus."""
    return next((other for other in topology.pci if other.key == device.parent), None) if device.parent else None
