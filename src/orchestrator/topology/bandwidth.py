"""Bandwidth of paths by NCCL's own constants, in GB/s: what its choices rest on, not what a stopwatch would say.

Sources: NCCL src/graph/topo.h (LOC_BW, *_QPI_BW, AMD_BW, ARM_BW, P9_BW), topo.cc (kvDictPciGen, ncclTopoGetInterCpuBw),
xml.cc (the slower of a device and the port above it). Versions: 22 and 40 GB/s between Intel's sockets came after
2.24.3 and by 2.26.2.
"""

from __future__ import annotations

from orchestrator.model.topology import CpuModel, PathType, PcieLink, Topology
from orchestrator.topology.distance import Distances
from orchestrator.topology.pci import XML_ROOT, best_link, bridges_above

Version = tuple[int, ...]
"""(2, 21, 5): of NCCL."""

LOCAL_GBS = 5000.0
_PER_16_LANES = {2.5: 15, 5.0: 30, 8.0: 60, 16.0: 120, 32.0: 240, 64.0: 480}
"""Units of NCCL's table by GT/s a lane; lanes times this, divided by 80, is GB/s."""
_NVLINK_GBS = ((100, 40.1), (90, 20.6), (70, 20.0), (60, 18.0))
_UNKNOWN_SPEED_GTS = 8.0
_ALL_LANES = 16
_SINCE_SAPPHIRE_RAPIDS = (2, 26)
_ONE_LEVEL_FOR_ALL = (2, 23)
_AMD_GBS = 16.0
_ARM_GBS = 6.0
_POWER_GBS = 32.0


def pci_gbs(link: PcieLink) -> float:
    """A PCIe link: 24 for generation 4 x16, 12 for generation 3 x16 or 4 x8. Unknown counts as generation 3, x16."""
    per_lane = _PER_16_LANES.get(link.speed_gts, _PER_16_LANES[_UNKNOWN_SPEED_GTS])
    return (link.width or _ALL_LANES) * per_lane / 80


def nvlink_gbs(sm: int) -> float:
    """One NVLink of a GPU by its compute capability (NCCL src/graph/topo.h, ncclTopoNVLinkBw); unknown as 80."""
    if sm == 86:
        return 12.0
    return next((gbs for least, gbs in _NVLINK_GBS if sm >= least), 20.0)


def network_gbs(rate_gbps: float) -> float:
    """A network port by its rate in Gb/s."""
    return rate_gbps / 8


def between_sockets_gbs(cpu: CpuModel, nccl: Version) -> float:
    """The link between two CPU sockets."""
    if cpu.arch == "ppc64":
        return _POWER_GBS
    if cpu.vendor == "AuthenticAMD":
        return _AMD_GBS
    if cpu.vendor != "GenuineIntel":
        return _ARM_GBS
    if nccl >= _SINCE_SAPPHIRE_RAPIDS and cpu.family == 6 and cpu.model >= 0x8F:
        return 40.0 if cpu.model >= 0xCF else 22.0
    return 10.0 if cpu.family == 6 and cpu.model >= 0x55 else 6.0


def p2p_level(topology: Topology, nccl: Version) -> PathType:
    """The farthest path over which NCCL connects two GPUs directly by default (src/graph/paths.cc,
    ncclTopoCheckP2p). Since 2.23: PXB; SYS where an AMD machine has at most two GPUs. Before: SYS, but PXB on Intel,
    ARM and Zhaoxin."""
    amd = topology.cpu.vendor == "AuthenticAMD"
    if nccl >= _ONE_LEVEL_FOR_ALL:
        return PathType.SYS if amd and len(topology.gpus) <= 2 else PathType.PXB
    return PathType.SYS if amd else PathType.PXB


class Bandwidths:
    """Bandwidths between the PCI functions of one node, for one version of NCCL."""

    def __init__(self, topology: Topology, nccl: Version) -> None:
        self._devices = {device.key: device for device in topology.pci}
        self._distances = Distances(topology)
        self._sm = {gpu.key: gpu.sm for gpu in topology.gpus}
        self._sockets = between_sockets_gbs(topology.cpu, nccl)

    def between(self, one: str, other: str) -> float:
        """The narrowest part of the path between two functions, by key; 0 where there is none."""
        path = self._distances.path_type(one, other)
        if path is PathType.DIS:
            return 0.0
        if path is PathType.LOC:
            return LOCAL_GBS
        if path is PathType.NVL:
            return self._distances.nvlinks(one, other) * nvlink_gbs(min(self._sm[one], self._sm[other]))
        widths = [self.at(one), self.at(other)]
        if path is not PathType.PIX:
            widths += self._uplinks(one, other)
        return min(*widths, self._sockets) if path is PathType.SYS else min(widths)

    def at(self, key: str) -> float:
        """A function's own link, at what it and the port above it can do: an idle GPU has slowed down."""
        return pci_gbs(best_link(self._devices[key], self._devices))

    def _uplinks(self, one: str, other: str) -> list[float]:
        """Links of the switches on the path that are not above both."""
        ways = (bridges_above(one), bridges_above(other))
        apart = set(ways[0]) ^ set(ways[1])
        upstream = [key for way in ways for key in way[1::2] if key in apart and key in self._devices]
        return [self.at(key) for key in upstream if key.startswith(XML_ROOT) or self._devices[key].parent]
