"""Network cards: their functions together, whatever they are used for."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.model.topology import PciDevice, Topology
from orchestrator.topology.pci import card

_NETWORK_CLASS = 0x02


def nic_cards(topology: Topology) -> Mapping[str, tuple[PciDevice, ...]]:
    """{real path of the card without its function: its functions}, of everything that is a NIC.

    A NIC is of the network class, has an RDMA port, or has an interface of its own. Virtual functions count with
    nobody: they are no cards.
    """
    in_use = {port.key for port in topology.rdma} | {interface.key for interface in topology.interfaces}
    cards: dict[str, list[PciDevice]] = {}
    for device in topology.pci:
        if not device.virtual and (device.class_code >> 16 == _NETWORK_CLASS or device.key in in_use):
            cards.setdefault(card(device.key), []).append(device)
    return {key: tuple(functions) for key, functions in cards.items()}
