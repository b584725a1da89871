"""The switches whose slots GPUs are plugged into; those on a GPU's own card have none."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.model.topology import PciDevice, Switch, Topology
from orchestrator.topology.pci import card
from orchestrator.topology.switches import SwitchPlaces

_SEVERAL_GPUS_ON_ONE_CARD = frozenset({0x0FF2, 0x102D, 0x118F, 0x11BF, 0x13BD, 0x13F2, 0x25B6})
"""Device ids of NVIDIA's GRID K1, K80, K10, GRID K2, M10, M60 and A16. Such a card has a switch of its own."""

_MANAGEMENT = frozenset({(0x1000, 0x00B2)})
"""A PEX switch's own management endpoint, which stands below it like a card (DGX A100 and its like)."""
_EMULATED = frozenset({(0x104C, 0x8232)})
"""QEMU's x3130-upstream, after a TI switch of one PCIe 1 lane a port: a hypervisor's tree, not the board's."""


def homes(topology: Topology, places: SwitchPlaces) -> Mapping[str, str]:
    """{GPU's key: key of the nearest switch above it that is not on a GPU's own card}; '' on a root port."""
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

    Such a switch has nothing but one GPU behind it, is real and not known to have slots; or it has the GPUs of a card
    that is known to hold several.
    """
    gpus = {card(gpu.key) for gpu in topology.gpus}
    several = {card(device.key) for device in topology.pci if device.device in _SEVERAL_GPUS_ON_ONE_CARD} & gpus
    behind = _cards_behind(topology, places)
    alone = {key for key, cards in behind.items() if len(cards) == 1 and cards <= gpus}
    shared = {key for key, cards in behind.items() if len(cards) > 1 and cards <= several}
    return (alone - _known_to_have_slots(topology, behind, gpus, several) - emulated_switches(topology)) | shared


def emulated_switches(topology: Topology) -> set[str]:
    """Keys of the switches that a hypervisor made up."""
    devices = {device.key: device for device in topology.pci}
    return {switch.key for switch in topology.switches if make(devices.get(switch.key)) in _EMULATED}


def _cards_behind(topology: Topology, places: SwitchPlaces) -> dict[str, set[str]]:
    """{switch: everything that is not a bridge and lies below it, functions of one card as one}."""
    behind: dict[str, set[str]] = {}
    for device in topology.pci:
        if not device.is_bridge and make(device) not in _MANAGEMENT:
            for switch in places.above(device.key):
                behind.setdefault(switch, set()).add(card(device.key))
    return behind


def _known_to_have_slots(
    topology: Topology, behind: Mapping[str, set[str]], gpus: set[str], several: set[str]
) -> set[str]:
    """The outermost switches of a make of which one has a GPU and another card behind it."""
    devices = {device.key: device for device in topology.pci}
    mixed = {
        make(devices.get(key))
        for key, cards in behind.items()
        if cards & gpus and len(cards) > 1 and not cards <= several
    }
    outermost = [switch.key for switch in topology.switches if not switch.parent_switch]
    return {key for key in outermost if make(devices.get(key)) in mixed}
