"""What each RDMA card of a node is for, and which switches GPUs are plugged in behind.

Nobody writes down what a card is for. Where the node's TCP side is known, its card is the main card. Where it is not
(a recording without addresses, NCCL's XML), the switches tell: one with GPUs and no card, and a card of the same kind
away from all GPUs, belong together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from orchestrator.model.topology import PciDevice, RdmaPort, Switch, Topology
from orchestrator.topology.network import is_bonded
from orchestrator.topology.pci import card
from orchestrator.topology.switches import SwitchPlaces

_SEVERAL_GPUS_ON_ONE_CARD = frozenset({0x0FF2, 0x102D, 0x118F, 0x11BF, 0x13BD, 0x13F2, 0x25B6})
"""Device ids of NVIDIA's GRID K1, K80, K10, GRID K2, M10, M60 and A16: such a card has a switch of its own."""


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


def slotted_switches(topology: Topology, places: SwitchPlaces) -> tuple[Switch, ...]:
    """The nearest switch above each GPU that is no part of a GPU's own card, in order of address."""
    own = _on_cards(topology, places)
    homes = {next((switch for switch in places.above(gpu.key) if switch not in own), "") for gpu in topology.gpus}
    return tuple(switch for switch in topology.switches if switch.key in homes)


def _on_cards(topology: Topology, places: SwitchPlaces) -> set[str]:
    """Keys of the switches on GPUs' own cards, which have no slot.

    Such a switch has one GPU behind it and nothing else, and no other switch of its make has a GPU and a card; or it
    has the GPUs of a card that is known to hold several.
    """
    devices = {device.key: device for device in topology.pci}
    gpus = {card(gpu.key) for gpu in topology.gpus}
    behind: dict[str, set[str]] = {}
    for device in topology.pci:
        if not device.is_bridge:
            for switch in places.above(device.key):
                behind.setdefault(switch, set()).add(card(device.key))
    mixed = {_make(devices.get(key)) for key, cards in behind.items() if cards & gpus and cards - gpus}
    several = {card(device.key) for device in topology.pci if device.device in _SEVERAL_GPUS_ON_ONE_CARD} & gpus
    nested = {switch.key for switch in topology.switches if switch.parent_switch}
    alone = {key for key, cards in behind.items() if len(cards) == 1 and cards <= gpus}
    return {key for key in alone if key in nested or _make(devices.get(key)) not in mixed} | {
        key for key, cards in behind.items() if cards <= several and len(cards) > 1
    }


def _make(device: PciDevice | None) -> tuple[int, int]:
    return (device.vendor, device.device) if device else (0, 0)


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
    """Whether a switch lies above both the port and a GPU."""
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
    kinds = {_make(devices.get(port.key)) for port in near}
    domains = {switch.numa_node for switch in lonely}
    left = list(far)
    alike = {port for port in far if _make(devices.get(port.key)) in kinds}
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
