"""Which switches GPUs are plugged in behind: those with slots, not those on a GPU's own card."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.model.topology import PciDevice, Switch, Topology
from orchestrator.topology.pci import card
from orchestrator.topology.switches import SwitchPlaces

_SEVERAL_GPUS_ON_ONE_CARD = frozenset({0x0FF2, 0x102D, 0x118F, 0x11BF, 0x13BD, 0x13F2, 0x25B6})
"""Device ids of NVIDIA's GRID K1, K80, K10, GRID K2, M10, M60 and A16: such a card has a switch of its own."""


def homes(topology: Topology, places: SwitchPlaces) -> Mapping[str, str]:
    """{GPU's key: key of the nearest switch above it that is no part of a GPU's own card}; '' on a root port."""
    own = _on_cards(topology, places)
    return {
        gpu.key: next((switch for switch in places.above(gpu.key) if switch not in own), "") for gpu in topology.gpus
    }


def slotted_switches(topology: Topology, places: SwitchPlaces) -> tuple[Switch, ...]:
    """The switches among `homes`, in order of address."""
    found = set(homes(topology, places).values())
    return tuple(switch for switch in topology.switches if switch.key in found)


def make(device: PciDevice | None) -> tuple[int, int]:
    """Vendor and device id; (0, 0) where unknown."""
    return (device.vendor, device.device) if device else (0, 0)


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
    mixed = {make(devices.get(key)) for key, cards in behind.items() if cards & gpus and cards - gpus}
    several = {card(device.key) for device in topology.pci if device.device in _SEVERAL_GPUS_ON_ONE_CARD} & gpus
    nested = {switch.key for switch in topology.switches if switch.parent_switch}
    alone = {key for key, cards in behind.items() if len(cards) == 1 and cards <= gpus}
    return {key for key in alone if key in nested or make(devices.get(key)) not in mixed} | {
        key for key, cards in behind.items() if cards <= several and len(cards) > 1
    }
