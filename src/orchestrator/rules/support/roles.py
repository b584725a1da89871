"""What each RDMA card of a node is for, and which switches GPUs are plugged in behind.

Nobody writes down what a card is for. Where the node's TCP side is known, its card is the main card. Where it is not
(a recording without addresses, NCCL's XML), the switches tell: one with GPUs and no card, and a card of the same kind
away from all GPUs, belong together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from orchestrator.model.topology import RdmaPort, Switch, Topology
from orchestrator.topology.homes import make
from orchestrator.topology.network import is_bonded
from orchestrator.topology.pci import card
from orchestrator.topology.switches import SwitchPlaces


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
    meant = _meant(topology, places, tcp, asked)
    if not homes:
        return Roles(tuple(meant))
    near = [port for port in meant if is_near(port, topology, places)]
    lonely = _lonely(homes, near, places)
    far = [port for port in meant if port not in near and port.key and port.device not in asked]
    chosen = _misplaced(topology, near, far, lonely) if lonely else []
    sure = bool(tcp) or _main_card_is_another(topology, far, chosen, lonely)
    away = tuple(chosen) if sure else ()
    rails = [port for port in meant if port in near or port in away or not port.key or port.device in asked]
    return Roles(tuple(rails), away, () if sure else tuple(chosen), _highest(lonely, homes, places))


def is_near(port: RdmaPort, topology: Topology, places: SwitchPlaces) -> bool:
    """Whether a switch is above both the port and a GPU."""
    return any(not set(places.above(gpu.key)).isdisjoint(places.above(port.key)) for gpu in topology.gpus)


def _meant(topology: Topology, places: SwitchPlaces, tcp: str, asked: Collection[str]) -> list[RdmaPort]:
    """All ports but bonded and virtual ones, the TCP side's, and those of its card where that is the main card."""
    own = [port for port in topology.rdma if port.device in asked or _may_be_a_rail(port, topology)]
    carriers = [port for port in own if tcp and port.netdev == tcp]
    main = {card(port.key) for port in carriers if not is_near(port, topology, places)}
    if all(card(port.key) in main for port in own):
        main = set()
    return [port for port in own if port.device in asked or (card(port.key) not in main and port not in carriers)]


def _may_be_a_rail(port: RdmaPort, topology: Topology) -> bool:
    return not port.virtual and not is_bonded(port, topology)


def _lonely(homes: Sequence[Switch], near: Iterable[RdmaPort], places: SwitchPlaces) -> list[Switch]:
    served = {switch for port in near for switch in places.above(port.key)}
    return [switch for switch in homes if served.isdisjoint(places.above(f"{switch.key}/"))]


def _highest(lonely: Sequence[Switch], homes: Sequence[Switch], places: SwitchPlaces) -> tuple[Switch, ...]:
    """Lonely switches with a common switch above that has no other ones below it: that one instead."""
    by_key = {switch.key: switch for switch in places.switches}
    chains = {switch.key: places.above(f"{switch.key}/") for switch in homes}
    without = {switch.key for switch in lonely}
    found = {}
    for switch in lonely:
        fit = [
            key
            for key in chains[switch.key]
            if all(home in without for home, chain in chains.items() if key in chain)
            and (key == switch.key or sum(key in chain for chain in chains.values()) > 1)
        ]
        found[fit[-1]] = by_key[fit[-1]]
    return tuple(found.values())


def _misplaced(
    topology: Topology, near: Sequence[RdmaPort], far: Sequence[RdmaPort], lonely: Sequence[Switch]
) -> list[RdmaPort]:
    """Of the ports away from the GPUs those that the lonely switches lack: of a kind with the cards in their places,
    then in the same NUMA domain, as long as more cards are left than switches lack."""
    devices = {device.key: device for device in topology.pci}
    kinds = {make(devices.get(port.key)) for port in near}
    domains = {switch.numa_node for switch in lonely}
    left = list(far)
    alike = {port for port in far if make(devices.get(port.key)) in kinds}
    for fitting in (alike, {port for port in far if port.numa_node in domains}):
        if len({card(port.key) for port in left}) > len(lonely):
            left = [port for port in left if port in fitting] or left
    return left


def _main_card_is_another(
    topology: Topology,
    far: Sequence[RdmaPort],
    chosen: Sequence[RdmaPort],
    lonely: Sequence[Switch],
) -> bool:
    """Without a known TCP side: whether a bonded card or one that is left over may be the main card, and not more cards
    are chosen than switches lack one."""
    others = {card(port.key) for port in far} - {card(port.key) for port in chosen}
    bonded = any(is_bonded(port, topology) for port in topology.rdma)
    fitting = len({card(port.key) for port in chosen}) <= len(lonely)
    return bonded or (bool(others) and fitting)
