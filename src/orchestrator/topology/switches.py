"""PCIe switches, identified by their upstream port as NCCL does; which of them have slots, and the empty ones.

Seen from a root bus, bridges alternate: root port, upstream port, downstream port, upstream port of the next switch;
some machines show a switch's upstream port on the root bus itself. NCCL steps two path components up from a device and
so meets upstream ports only (src/graph/xml.cc, ncclTopoGetXmlFromSys). Broadcom's PEX switches show parts of one chip
as switches of their own; NCCL merges these (src/graph/topo.cc, ncclTopoFlattenBcmSwitches).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from orchestrator.model.per_node import collected
from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import PciDevice, PcieLink, Switch, Topology
from orchestrator.topology.pci import XML_ROOT, bridges_above, card, config_space, number, slots, sort_key

_BROADCOM = 0x1000
_PEX_GEN4, _PEX_GEN5 = 0xC010, 0xC030


def find_switches(devices: Sequence[PciDevice], serving: Collection[str] = ()) -> tuple[Switch, ...]:
    """Every switch, in order of address: an upstream port with downstream ports below it.

    One downstream port alone makes no switch (chipsets show their own devices so), unless a function of `serving`
    (keys of GPUs and RDMA cards) is below: firmware may hide ports that are empty.
    """
    by_key = {device.key: device for device in devices}
    keys = {key for device in devices for key in _upstream_ports(device, by_key)}
    ways = [bridges_above(key) for key in serving]
    keys -= {port for way in ways for port in way[::2]}
    keys |= {upstream for way in ways for upstream in way[1::2]}
    keys = _worth_naming(keys, devices, serving) | _told_by_nccl(devices)
    switches = [_switch(key, by_key.get(key), keys) for key in keys]
    return merged(sorted(switches, key=lambda switch: (sort_key(switch.address), switch.key)), by_key)


def _told_by_nccl(devices: Sequence[PciDevice]) -> set[str]:
    """Keys of the switches of NCCL's own file, which shows no ports."""
    return {device.key for device in devices if device.is_bridge and device.key.startswith(XML_ROOT)}


def _upstream_ports(device: PciDevice, by_key: Mapping[str, PciDevice]) -> Sequence[str]:
    """Of the bridges down to a device every second one, where another bridge follows."""
    above = bridges_above(device.key)
    if device.is_bridge and not (above and (above[0] not in by_key or by_key[above[0]].is_bridge)):
        return ()
    chain = [*reversed(above)]
    if device.is_bridge:
        chain.append(device.key)
    return chain[1:-1:2]


def upstream_ports_above(key: str) -> tuple[str, ...]:
    """Every second bridge above a device, nearest first, as NCCL steps up; all of them where NCCL has written them down
    (its XML has no downstream ports). For a switch's key with a slash behind it the switch is the first."""
    ways = bridges_above(key)
    if key.startswith(XML_ROOT):
        return ways
    return ways[::2] if key.endswith("/") else ways[1::2]


def _worth_naming(keys: Collection[str], devices: Sequence[PciDevice], serving: Collection[str]) -> set[str]:
    ways = ((device.key, *bridges_above(device.key)) for device in devices)
    downstream = collected((bridge, port) for way in ways for port, bridge in pairwise(way) if bridge in keys)
    used = {bridge for key in serving for bridge in bridges_above(key)}
    return {key for key in keys if key in used or len({*downstream.get(key, ())}) > 1}


def _switch(key: str, device: PciDevice | None, keys: Iterable[str]) -> Switch:
    """device: None where its own files are missing; what lies below it still shows it"""
    return Switch(
        key=key,
        address=key.rpartition("/")[2].lower(),
        numa_node=device.numa_node if device else -1,
        parent_switch=next((bridge for bridge in upstream_ports_above(key) if bridge in keys), ""),
        link=device.link if device else PcieLink(),
        link_max=device.link_max if device else PcieLink(),
    )


def merged(switches: Sequence[Switch], by_key: Mapping[str, PciDevice]) -> tuple[Switch, ...]:
    """Mark the sub-switches that NCCL merges into the switch above; one that took some in is not merged itself."""
    into: dict[str, str] = {}
    for switch in sorted(switches, key=lambda switch: len(bridges_above(switch.key))):
        generation = 0 if switch.key in into else _broadcom_generation(by_key.get(switch.key), sub=False)
        inner = [other.key for other in switches if other.parent_switch == switch.key] if generation else ()
        same = (key for key in inner if _broadcom_generation(by_key.get(key), sub=True) == generation)
        into |= dict.fromkeys(same, switch.key)
    return tuple(replace(switch, merged_into=into.get(switch.key, "")) for switch in switches)


def _broadcom_generation(device: PciDevice | None, *, sub: bool) -> int:
    """4 or 5 for a PEX switch that NCCL merges (getBcmGen), else 0; generation 5 tells sub-switches by subsystem."""
    if device is None or (device.vendor, device.subsystem_vendor) != (_BROADCOM, _BROADCOM):
        return 0
    group = device.subsystem_device & 0xF000
    if device.device == _PEX_GEN4 and group == 0xA000:
        return 4
    if device.device == _PEX_GEN5 and group == (0x1000 if sub else 0x0000):
        return 5
    return 0


class SwitchPlaces:
    """Which switches lie above a function, as NCCL sees it: nearest first, merged parts as the whole (unless told not
    to merge)."""

    def __init__(self, switches: Iterable[Switch], *, merge: bool = True) -> None:
        self.switches = tuple(switches)
        self._whole = {switch.key: (merge and switch.merged_into) or switch.key for switch in self.switches}

    def above(self, key: str) -> tuple[str, ...]:
        """Keys of switches, nearest first; () on a root port. For a switch's own key with a slash behind it that switch
        comes first."""
        ports = (self._whole[bridge] for bridge in upstream_ports_above(key) if bridge in self._whole)
        return tuple(dict.fromkeys(ports))

    def nearest(self, key: str) -> str:
        """Key of the switch above a function, '' for none."""
        return next(iter(self.above(key)), "")


def empty_slots(topology: Topology, snapshot: Snapshot) -> Mapping[str, tuple[str, ...]]:
    """{key of a switch: names of its empty slots}; '' has those of root ports. Empty where the firmware names none.

    A slot's address is that of the bus behind its port; the port says which bus that is.
    """
    occupied = {card(device.address) for device in topology.pci}
    switches = {switch.key for switch in topology.switches}
    owners = {
        config_space(snapshot, device.key).secondary_bus: device.parent if device.parent in switches else ""
        for device in topology.pci
        if device.is_bridge
    }
    slots_below: dict[str, list[str]] = {}
    for name, address in slots(snapshot).items():
        bus = number(address.split(":")[1], 16) if address.count(":") == 2 else 0
        if bus in owners and bus and address not in occupied:
            slots_below.setdefault(owners[bus], []).append(name)
    return {key: tuple(sorted(names, key=lambda name: (len(name), name))) for key, names in slots_below.items()}


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
    return tuple(switch for switch in topology.switches if switch.key in homes(topology, places).values())


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
    return {switch.key for switch in topology.switches if make(topology.devices.get(switch.key)) in _EMULATED}


def _cards_behind(topology: Topology, places: SwitchPlaces) -> dict[str, set[str]]:
    """{switch: everything that is not a bridge and lies below it, functions of one card as one}."""
    leaves = [function.key for function in topology.pci if not function.is_bridge and make(function) not in _MANAGEMENT]
    behind = collected((switch, card(key)) for key in leaves for switch in places.above(key))
    return {switch: {*cards} for switch, cards in behind.items()}


def _known_to_have_slots(
    topology: Topology, behind: Mapping[str, set[str]], gpus: set[str], several: set[str]
) -> set[str]:
    """The outermost switches of a make of which one has a GPU and another card behind it."""
    devices = topology.devices
    mixed = {
        make(devices.get(key))
        for key, cards in behind.items()
        if cards & gpus and len(cards) > 1 and not cards <= several
    }
    return {
        switch.key
        for switch in topology.switches
        if not switch.parent_switch and make(devices.get(switch.key)) in mixed
    }
