"""Physical slots with nothing in them, and the switch that each belongs to."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import Topology
from orchestrator.topology.config_space import config_space
from orchestrator.topology.pci import card, number


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
    found: dict[str, list[str]] = {}
    for name in snapshot.names("/sys/bus/pci/slots"):
        address = snapshot.text(f"/sys/bus/pci/slots/{name}/address").lower()
        bus = number(address.split(":")[1], 16) if address.count(":") == 2 else 0
        if bus in owners and bus and address not in occupied:
            found.setdefault(owners[bus], []).append(name)
    return {key: tuple(sorted(names, key=lambda name: (len(name), name))) for key, names in found.items()}
