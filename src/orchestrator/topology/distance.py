"""How far apart two devices are, by NCCL's rules (src/graph/paths.cc, src/graph/xml.cc)."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.model.topology import PathType, PciDevice, Topology

# NCCL src/graph/topo.cc getBcmGen, ncclTopoFlattenBcmSwitches: Broadcom parts that present one switch as several
_BCM_GEN4 = (0xC010,)
_BCM_GEN4_FAMILY = 0xA000
_BCM_GEN5 = (0xC030,)
_BROADCOM = 0x1000


def path_type(topology: Topology, one: str, other: str) -> PathType:
    """The path between two PCI functions, given by key. DIS where a key is not in the topology."""
    devices = {device.key: device for device in topology.pci}
    if one not in devices or other not in devices:
        return PathType.DIS
    if one == other:
        return PathType.LOC
    if same_card(devices[one], devices[other]):
        return PathType.PIX
    mine = _chain(one, devices)
    theirs = _chain(other, devices)
    switches = {switch.key for switch in topology.switches}
    shared = next((key for key in mine if key in theirs and key in switches), "")
    if shared:
        between = {
            _flat(key, devices)
            for chain in (mine, theirs)
            for key in chain[: chain.index(shared) + 1]
            if key in switches
        }
        return PathType.PIX if len(between) == 1 else PathType.PXB
    near = _numa(mine, devices) == _numa(theirs, devices)
    return PathType.PHB if near else PathType.SYS


def same_card(one: PciDevice, other: PciDevice) -> bool:
    """Two functions of one card."""
    return one.parent == other.parent and one.address.rpartition(".")[0] == other.address.rpartition(".")[0]


def _chain(key: str, devices: Mapping[str, PciDevice]) -> list[str]:
    """The function and every bridge above it, nearest first."""
    chain = []
    while key in devices and key not in chain:
        chain.append(key)
        key = devices[key].parent
    return chain


def _flat(key: str, devices: Mapping[str, PciDevice]) -> str:
    """The switch that a nested one is flattened into: its Broadcom parent of the same generation, else itself."""
    device = devices[key]
    generation = _bcm_generation(device)
    parent = devices.get(device.parent)
    above = devices.get(parent.parent) if parent else None
    if generation and above is not None and _bcm_generation(above) == generation:
        return _flat(above.key, devices)
    return key


def _bcm_generation(device: PciDevice) -> int:
    if device.vendor != _BROADCOM:
        return 0
    if device.device in _BCM_GEN4 or device.device & 0xFF00 == _BCM_GEN4_FAMILY:
        return 4
    return 5 if device.device in _BCM_GEN5 else 0


def _numa(chain: list[str], devices: Mapping[str, PciDevice]) -> int:
    """The NUMA domain of the topmost device, as NCCL takes it; -1 is a domain like any other."""
    return devices[chain[-1]].numa_node
