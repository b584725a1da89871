"""How far apart two devices are, by NCCL's rules (src/graph/paths.cc, ncclTopoComputePaths)."""

from __future__ import annotations

from orchestrator.model.topology import Area, PathType, RdmaPort, Topology
from orchestrator.topology.pci import card, normal_address
from orchestrator.topology.stated import TEXT, path_of
from orchestrator.topology.switches import SwitchPlaces


class Distances:
    """Distances on one node; made once where many are asked for.

    merge: parts of one Broadcom switch count as one, as NCCL has it; nvidia-smi counts every switch
    """

    def __init__(self, topology: Topology, *, merge: bool = True) -> None:
        self._devices = {device.key: device for device in topology.pci}
        self._gpus = {gpu.key: gpu for gpu in topology.gpus if gpu.nvlinks}
        self._numa_of_switch = {switch.key: switch.numa_node for switch in topology.switches}
        self._places = SwitchPlaces(topology.switches, merge=merge)
        self._words = _stated_words(topology)
        placed = any(device.numa_node >= 0 for device in topology.pci)
        self._blind = not placed and any(one.path == TEXT for one in topology.lacks(Area.NUMA))

    def path_type(self, one: str, other: str) -> PathType:
        """The path between two PCI functions, by key; DIS where one of them, or what decides, is unknown.

        Of a device without a function (its key is then `end_key`'s) what a text states.

        Functions of one card are one device (NCCL src/transport/net_ib/init.cc sets the function digit to zero).
        """
        if stated := path_of(self._words.get((one, other), "")):
            return stated
        if one not in self._devices or other not in self._devices:
            return PathType.DIS
        if card(one) == card(other):  # paths: two cards that claim one address stay two
            return PathType.LOC
        if self.nvlinks(one, other):
            return PathType.NVL
        return self._by_pci(one, other)

    def nvlinks(self, one: str, other: str) -> int:
        """NVLinks that join two GPUs: direct ones, else those that the GPU with fewer has to NVSwitches; 0 for none.

        A path over a third GPU, NCCL's NVB, is not detected.
        """
        ends = self._gpus.get(one), self._gpus.get(other)
        if ends[0] is None or ends[1] is None:
            return 0
        direct = sum(link.count for link in ends[0].nvlinks or () if _same(link.target, ends[1].address))
        return direct or min(sum(link.count for link in end.nvlinks or () if link.switch) for end in ends if end)

    def _by_pci(self, one: str, other: str) -> PathType:
        above, above_other = self._places.above(one), self._places.above(other)
        shared = next((switch for switch in above if switch in above_other), None)
        if shared is not None:
            direct = above[0] == shared and above_other[0] == shared
            return PathType.PIX if direct else PathType.PXB
        if self._blind and self._devices[one].root != self._devices[other].root:
            return PathType.DIS  # of one domain or of two
        return PathType.PHB if self.numa_node(one) == self.numa_node(other) else PathType.SYS

    def nvidia_smi_word(self, one: str, other: str) -> str:
        """As `nvidia-smi topo -m` writes it: X for the same function, PIX for two functions of one card, and NODE where
        NCCL's PHB joins two host bridges of one NUMA domain."""
        if one == other or (one, other) in self._words:
            return self._words.get((one, other), "X")
        path = self.path_type(one, other)
        if path is PathType.LOC:
            return PathType.PIX.name
        if path is PathType.NVL:
            return f"NV{self.nvlinks(one, other)}"
        if path is PathType.PHB and self._devices[one].root != self._devices[other].root:
            return "NODE"
        return "N/A" if path is PathType.DIS else path.name

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
    return {(keys[one], keys[other]): word for (one, other), word in words if one in keys and other in keys}


def _same(target: str, address: str) -> bool:
    """Whether NVML and sysfs mean one address: they write the domain with 4 or 8 digits."""
    return bool(address) and normal_address(target) == address
