"""What each RDMA card of a node is for, and which switches GPUs are plugged in behind.

Nobody writes down what a card is for. Where the node's TCP side is known, its card is the main card. Where it is not
(a recording without addresses, NCCL's XML), the switches tell: one with GPUs and no card, and a card of the same kind
away from all GPUs, belong together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from orchestrator.model.topology import RdmaPort, Switch, Topology
from orchestrator.topology.network import GpuPlaces, carrier, is_bonded, may_be_rails
from orchestrator.topology.rdma import card_of
from orchestrator.topology.switches import SwitchPlaces, make


@dataclass(frozen=True, slots=True)
class Roles:
    """The RDMA ports of one node.

    rails:   ports that are there for the GPUs' traffic, whatever state they are in
    away:    those of them that share no switch with a GPU while some switch lacks a card: misplaced
    unclear: ports that may be misplaced or may carry TCP; nothing that was recorded tells
    lonely:  switches with GPUs and no card, the highest one of each branch without any
    """

    rails: tuple[RdmaPort, ...]
    away: tuple[RdmaPort, ...] = ()
    unclear: tuple[RdmaPort, ...] = ()
    lonely: tuple[Switch, ...] = ()


def roles(topology: Topology, homes: Sequence[Switch], tcp: str, asked: Collection[str] = ()) -> Roles:
    """homes: slotted_switches; tcp: interface of the TCP side, '' where not known; asked: RDMA devices that the
    inventory names."""
    places = SwitchPlaces(topology.switches)
    beside = GpuPlaces(topology)
    meant = _meant(topology, beside, tcp, asked)
    if not homes:
        return Roles(tuple(meant))
    near = [port for port in meant if beside.near(port)]
    far = _away_from_gpus(meant, near, asked)
    lonely = _lonely(homes, near, places)
    chosen = tuple(_misplaced(topology, near, far, lonely))
    sure = bool(tcp) or _main_card_is_another(topology, _cards(far), _cards(chosen), len(lonely))
    away, unclear = (chosen, ()) if sure else ((), chosen)
    rails = tuple(port for port in meant if port not in far or port in away)
    return Roles(rails, away, unclear, _highest(lonely, homes, places))


def _away_from_gpus(ports: Sequence[RdmaPort], near: Collection[RdmaPort], asked: Collection[str]) -> list[RdmaPort]:
    """Of those that have a place on the bus; what the inventory names is not questioned."""
    return [port for port in ports if port not in near and port.key and port.device not in asked]


def _meant(topology: Topology, places: GpuPlaces, tcp: str, asked: Collection[str]) -> list[RdmaPort]:
    """All ports but virtual ones, bonds that are no rails, the TCP side's, and those of its card where that is the main
    card."""
    carriers = _carriers_of(tcp, topology) if tcp else []
    meant = {*may_be_rails(topology, tcp), *carriers}
    own = [port for port in topology.rdma if port.device in asked or port in meant]
    main = _cards(port for port in carriers if not places.near(port))
    if _cards(own) <= main:
        main = set()
    return [port for port in own if port.device in asked or (card_of(port) not in main and port not in carriers)]


def _carriers_of(interface: str, topology: Topology) -> list[RdmaPort]:
    return [port for port in topology.rdma if carrier(port, topology) == interface and not port.virtual]


def _lonely(homes: Sequence[Switch], near: Iterable[RdmaPort], places: SwitchPlaces) -> list[Switch]:
    served = {switch for port in near for switch in places.above(port.key)}
    return [switch for switch in homes if served.isdisjoint(places.above(f"{switch.key}/"))]


def _main_card_is_another(topology: Topology, far: set[str], chosen: set[str], lonely: int) -> bool:
    """Without a known TCP side: whether a bonded card or one that is left over may be the main card, and no more cards
    are chosen than switches lack one."""
    bonded = any(is_bonded(port, topology) for port in topology.rdma if port not in may_be_rails(topology))
    return bonded or (far != chosen and len(chosen) <= lonely)


def _highest(lonely: Sequence[Switch], homes: Sequence[Switch], places: SwitchPlaces) -> tuple[Switch, ...]:
    """The lonely switches; where a switch has several of them below it and no other of `homes`, that one instead."""
    by_key = {switch.key: switch for switch in places.switches}
    chains = {switch.key: places.above(f"{switch.key}/") for switch in homes}
    without = {switch.key for switch in lonely}
    highest = {}
    for switch in lonely:
        fit = [
            key
            for key in chains[switch.key]
            if all(home in without for home, chain in chains.items() if key in chain)
            and (key == switch.key or sum(key in chain for chain in chains.values()) > 1)
        ]
        highest[fit[-1]] = by_key[fit[-1]]
    return tuple(highest.values())


def _misplaced(
    topology: Topology, near: Sequence[RdmaPort], far: Sequence[RdmaPort], lonely: Sequence[Switch]
) -> Sequence[RdmaPort]:
    """Of the ports away from the GPUs, those that the lonely switches lack: of the same make as the cards in their
    places, then in the same NUMA domain, as long as more cards are left than switches lack one."""
    if not lonely:
        return []
    devices = {device.key: device for device in topology.pci}
    makes = {make(devices.get(port.key)) for port in near}
    domains = {switch.numa_node for switch in lonely}
    alike = _narrowed(far, [port for port in far if make(devices.get(port.key)) in makes], lonely)
    return _narrowed(alike, [port for port in alike if port.numa_node in domains], lonely)


def _narrowed(ports: Sequence[RdmaPort], preferred: Sequence[RdmaPort], lonely: Sequence[Switch]) -> Sequence[RdmaPort]:
    """The preferred of the ports, if there are any and more cards are left than switches lack one."""
    return preferred if preferred and len(_cards(ports)) > len(lonely) else ports


def _cards(ports: Iterable[RdmaPort]) -> set[str]:
    return {card_of(port) for port in ports}
