"""How NCCL sees the way between two devices: path type, bandwidth, and whether it goes over the RDMA cards.

Sources: NCCL src/graph/paths.cc (ncclTopoComputePaths, ncclTopoCheckNet), topo.h (LOC_BW, *_QPI_BW, AMD_BW, ARM_BW,
P9_BW), topo.cc (kvDictPciGen, ncclTopoGetInterCpuBw), xml.cc (the slower of a device and the port above it). Bandwidths
are NCCL's own constants, in GB/s: what its choices rest on, not what a stopwatch would say. 22 and 40 GB/s between
Intel's sockets came after 2.24.3 and by 2.26.2.

Two GPUs of one node communicate over the network if both have a card no farther than PXB whose path to the GPU is
faster than the path between the GPUs. The node then splits into groups that NCCL counts as separate nodes
(ncclTopoTrimSystem): `nNodes` and `localRanks` in its INFO line (src/init.cc) show it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.model.topology import Area, CpuModel, Gpu, PathType, PcieLink, RdmaPort, Topology
from orchestrator.topology.network import rails
from orchestrator.topology.pci import XML_ROOT, best_link, bridges_above, card, normal_address
from orchestrator.topology.rdma import ports_by_card
from orchestrator.topology.stated import TEXT, path_of
from orchestrator.topology.switches import SwitchPlaces


class Distances:
    """Distances on one node; made once where many are asked for.

    merge: parts of one Broadcom switch count as one, as NCCL has it; nvidia-smi counts every switch
    """

    def __init__(self, topology: Topology, *, merge: bool = True) -> None:
        self._devices = topology.devices
        self._gpus = {gpu.key: gpu for gpu in topology.gpus if gpu.nvlinks}
        self._numa_of_switch = {switch.key: switch.numa_node for switch in topology.switches}
        self._places = SwitchPlaces(topology.switches, merge=merge)
        self._words = _stated_words(topology)
        placed = any(device.numa_node >= 0 for device in topology.pci)
        self._blind = not placed and any(lacking.path == TEXT for lacking in topology.lacks(Area.NUMA))

    def path_type(self, first: str, other: str) -> PathType:
        """The path between two PCI functions, by key; DIS where one of them, or what decides, is unknown.

        Of a device without a function (its key is then `end_key`'s) what a text states.

        Functions of one card are one device (NCCL src/transport/net_ib/init.cc sets the function digit to zero).
        """
        if stated := path_of(self._words.get((first, other), "")):
            return stated
        if first not in self._devices or other not in self._devices:
            return PathType.DIS
        if card(first) == card(other):  # paths: two cards that claim one address stay two
            return PathType.LOC
        if self.nvlinks(first, other):
            return PathType.NVL
        return self._by_pci(first, other)

    def nvlinks(self, first: str, other: str) -> int:
        """NVLinks that join two GPUs: direct ones, else those that the GPU with fewer has to NVSwitches; 0 for none.

        A path over a third GPU, NCCL's NVB, is not detected.
        """
        ends = self._gpus.get(first), self._gpus.get(other)
        if ends[0] is None or ends[1] is None:
            return 0
        direct = sum(link.count for link in ends[0].nvlinks or () if _same(link.target, ends[1].address))
        return direct or min(sum(link.count for link in end.nvlinks or () if link.switch) for end in ends if end)

    def _by_pci(self, first: str, other: str) -> PathType:
        above, above_other = self._places.above(first), self._places.above(other)
        shared = next((switch for switch in above if switch in above_other), None)
        if shared is not None:
            direct = above[0] == shared and above_other[0] == shared
            return PathType.PIX if direct else PathType.PXB
        if self._blind and self._devices[first].root != self._devices[other].root:
            return PathType.DIS  # of one domain or of two
        return PathType.PHB if self.numa_node(first) == self.numa_node(other) else PathType.SYS

    def nvidia_smi_word(self, first: str, other: str) -> str:
        """As `nvidia-smi topo -m` writes it: X for the same function, PIX for two functions of one card, and NODE where
        NCCL's PHB joins two host bridges of one NUMA domain."""
        if first == other or (first, other) in self._words:
            return self._words.get((first, other), "X")
        path = self.path_type(first, other)
        if path is PathType.NVL:
            return f"NV{self.nvlinks(first, other)}"
        if path is PathType.PHB and self._devices[first].root != self._devices[other].root:
            return "NODE"
        return {PathType.LOC: "PIX", PathType.DIS: "N/A"}.get(path, path.name)

    def numa_node(self, key: str) -> int:
        """NUMA domain of the topmost device on the path to the CPU: there NCCL attaches the branch. For a card it
        is that of the first function."""
        above = self._places.above(key)
        if above:
            return self._numa_of_switch[above[-1]]
        first = f"{key[:-1]}0"
        return (self._devices.get(first) or self._devices[key]).numa_node


def end_key(port: RdmaPort) -> str:
    """What stands for a port in distances: its PCI function, or its name where a text states no more of it."""
    return port.key or port.device


def _stated_words(topology: Topology) -> dict[tuple[str, str], str]:
    """{(key, key): word}, as far as a text states any."""
    if topology.stated is None:
        return {}
    keys = {f"GPU{gpu.index}": gpu.key for gpu in topology.gpus} | {
        port.device: end_key(port) for port in topology.rdma
    }
    words = topology.stated.words().items()
    return {(keys[first], keys[other]): word for (first, other), word in words if first in keys and other in keys}


def _same(target: str, address: str) -> bool:
    """Whether NVML and sysfs mean one address: they write the domain with 4 or 8 digits."""
    return bool(address) and normal_address(target) == address


Version = tuple[int, ...]
"""(2, 21, 5): of NCCL."""

_PER_16_LANES = {2.5: 15, 5.0: 30, 8.0: 60, 16.0: 120, 32.0: 240, 64.0: 480}
"""Units of NCCL's table by GT/s a lane; lanes times this, divided by 80, is GB/s."""
_NVLINK_GBS = ((100, 40.1), (90, 20.6), (70, 20.0), (60, 18.0))
_SINCE_SAPPHIRE_RAPIDS = (2, 26)
_ONE_LEVEL_FOR_ALL = (2, 23)


def pci_gbs(link: PcieLink) -> float:
    """A PCIe link: 24 for generation 4 x16, 12 for generation 3 x16 or 4 x8. Unknown counts as generation 3, x16."""
    return (link.width or 16) * _PER_16_LANES.get(link.speed_gts, _PER_16_LANES[8.0]) / 80


def nvlink_gbs(sm: int) -> float:
    """One NVLink of a GPU by its compute capability (NCCL src/graph/topo.h, ncclTopoNVLinkBw); unknown as 80."""
    return 12.0 if sm == 86 else next((gbs for least, gbs in _NVLINK_GBS if sm >= least), 20.0)


def network_gbs(rate_gbps: float) -> float:
    """A network port by its rate in Gb/s."""
    return rate_gbps / 8


def between_sockets_gbs(cpu: CpuModel, nccl: Version) -> float:
    """The link between two CPU sockets."""
    if cpu.arch == "ppc64":
        return 32.0
    if cpu.vendor != "GenuineIntel":
        return 16.0 if cpu.vendor == "AuthenticAMD" else 6.0
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
        self._devices = topology.devices
        self._distances = Distances(topology)
        self._sm = {gpu.key: gpu.sm for gpu in topology.gpus}
        self._sockets = between_sockets_gbs(topology.cpu, nccl)

    def between(self, first: str, other: str) -> float:
        """The narrowest part of the path between two functions, by key; 0 where there is none."""
        path = self._distances.path_type(first, other)
        if path is PathType.DIS:
            return 0.0
        if path is PathType.LOC:
            return 5000.0
        if path is PathType.NVL:
            return self._distances.nvlinks(first, other) * nvlink_gbs(min(self._sm[first], self._sm[other]))
        widths = [self.at(first), self.at(other)]
        if path is not PathType.PIX:
            widths += self._uplinks(first, other)
        return min(*widths, self._sockets) if path is PathType.SYS else min(widths)

    def at(self, key: str) -> float:
        """A function's own link, at what it and the port above it can do: an idle GPU has slowed down."""
        return pci_gbs(best_link(self._devices[key], self._devices))

    def _uplinks(self, first: str, other: str) -> list[float]:
        """Links of the switches on the path that are not above both."""
        ways = (bridges_above(first), bridges_above(other))
        apart = set(ways[0]) ^ set(ways[1])
        upstream = [key for way in ways for key in way[1::2] if key in apart and key in self._devices]
        return [self.at(key) for key in upstream if key.startswith(XML_ROOT) or self._devices[key].parent]


@dataclass(frozen=True, slots=True)
class Groups:
    """GPUs that reach each other without the network, by index; one group if the node is not split.

    reason: the comparison that decided, with its figures in GB/s
    """

    groups: tuple[tuple[int, ...], ...]
    reason: str

    @property
    def over_network(self) -> bool:
        """Whether traffic inside the node uses the RDMA cards."""
        return len(self.groups) > 1


def gpu_groups(topology: Topology, nccl: Version) -> Groups:
    """The groups that NCCL makes of one node's GPUs: each joins the first group that it reaches any earlier GPU of
    without the network. Ports of one card count together, as NCCL fuses them."""
    gpus = [gpu for gpu in topology.gpus if gpu.key in topology.devices]
    bandwidths, distances = Bandwidths(topology, nccl), Distances(topology)
    near = {gpu.key: _near_network_gbs(gpu, topology, bandwidths, distances) for gpu in gpus}
    first: list[int] = []
    """Place of the first GPU of each one's group, as ncclTopoTrimSystem numbers its domains."""
    cut, kept = "", "every GPU reaches every other one at least as fast without the network"
    for place, gpu in enumerate(gpus):
        first.append(place)
        for earlier, other in enumerate(gpus[:place]):
            inside, network = bandwidths.between(gpu.key, other.key), min(near[gpu.key], near[other.key])
            if network > inside:
                cut = f"over the RDMA cards {network:g}, between the GPUs {inside:g} GB/s"
            else:
                first[place] = min(first[place], first[earlier])
                if distances.path_type(gpu.key, other.key) > PathType.PXB:
                    kept = f"over the RDMA cards {network:g}, not above {inside:g} GB/s between the GPUs"
    groups = tuple(
        tuple(gpu.index for gpu, home in zip(gpus, first, strict=True) if home == root) for root in sorted(set(first))
    )
    return Groups(groups, cut if len(groups) > 1 else kept)


def nccl_log(nodes: Iterable[Groups]) -> tuple[int, int]:
    """(nNodes, most localRanks) that NCCL's log should show for a gang of these nodes."""
    groups = [group for node in nodes for group in node.groups]
    return len(groups), max((len(group) for group in groups), default=0)


def _near_network_gbs(gpu: Gpu, topology: Topology, bandwidths: Bandwidths, distances: Distances) -> float:
    """The best card no farther than PXB, all its usable ports together; 0 where there is none."""
    best = 0.0
    for ports in ports_by_card([rail.port for rail in rails(topology)]).values():
        if not ports[0].key or distances.path_type(gpu.key, ports[0].key) > PathType.PXB:
            continue
        rate = network_gbs(sum(port.rate_gbps for port in ports))
        best = max(best, min(rate, bandwidths.between(gpu.key, ports[0].key)))
    return best
