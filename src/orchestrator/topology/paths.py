"""Path types between GPUs and from GPUs to NICs: as NCCL names them, and as `nvidia-smi topo -m` lays them out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.model.topology import PathType, Topology
from orchestrator.topology.distance import Distances
from orchestrator.topology.pci import card, nic_cards
from orchestrator.topology.processors import cpulist, cpumap


@dataclass(frozen=True, slots=True)
class PathEnd:
    """A GPU or a NIC: its name (GPU0, mlx5_0) and the key of its PCI function, '' where it has none."""

    name: str
    key: str
    numa_node: int


@dataclass(frozen=True, slots=True)
class Pair:
    """Two ends and the path type between them as NCCL names it; None where a PCI function is not known."""

    one: str
    other: str
    type: PathType | None


def gpu_ends(topology: Topology) -> tuple[PathEnd, ...]:
    """Every GPU, by index; one that NVML does not show is named by its address."""
    known = {device.key for device in topology.pci}
    return tuple(
        PathEnd(
            f"GPU{gpu.index}" if gpu.index >= 0 else f"GPU@{gpu.address}",
            gpu.key if gpu.key in known else "",
            gpu.numa_node,
        )
        for gpu in topology.gpus
    )


def nic_ends(topology: Topology) -> tuple[PathEnd, ...]:
    """Every RDMA device in order of name; where the machine shows none, its network cards by interface or address."""
    if topology.rdma:
        ports = {port.device: port for port in reversed(topology.rdma)}
        return tuple(PathEnd(name, port.key, port.numa_node) for name, port in reversed(ports.items()))
    names = {interface.key: interface.name for interface in topology.interfaces if interface.key}
    firsts = [functions[0] for functions in nic_cards(topology).values()]
    return tuple(PathEnd(names.get(one.key) or card(one.address), one.key, one.numa_node) for one in firsts)


def paths(topology: Topology) -> tuple[Pair, ...]:
    """Every pair of GPUs and of a GPU and a NIC once, the lower index first and the GPU before the NIC."""
    distances = Distances(topology)

    def pair(one: PathEnd, other: PathEnd) -> Pair:
        known = one.key and other.key
        return Pair(one.name, other.name, distances.path_type(one.key, other.key) if known else None)

    gpus, nics = gpu_ends(topology), nic_ends(topology)
    between = [pair(gpu, other) for place, gpu in enumerate(gpus) for other in gpus[place + 1 :]]
    return (*between, *(pair(gpu, nic) for gpu in gpus for nic in nics))


def matrix(topology: Topology) -> str:
    """What `nvidia-smi topo -m` prints of this machine: tab-separated, NICs by number with a legend below."""
    gpus, nics = gpu_ends(topology), nic_ends(topology)
    ends = [*gpus, *nics]
    heads = [*(gpu.name for gpu in gpus), *(f"NIC{number}" for number in range(len(nics)))]
    distances = Distances(topology, merge=False)
    lines = ["\t".join(["", *heads, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for place, (head, end) in enumerate(zip(heads, ends, strict=True)):
        words = ["X" if place == other else _word(distances, end, ends[other]) for other in range(len(ends))]
        lines.append("\t".join([head, *words, *(_affinity(topology, end) if place < len(gpus) else ())]))
    return "\n".join([*lines, "", *_LEGEND, *_nic_legend(nics)])


def _word(distances: Distances, one: PathEnd, other: PathEnd) -> str:
    return distances.nvidia_smi_word(one.key, other.key) if one.key and other.key else "N/A"


def _affinity(topology: Topology, end: PathEnd) -> Sequence[str]:
    """Where the kernel names no domain, all are near: its local_cpulist has every CPU then."""
    near = [one for one in topology.numa if one.node == end.numa_node or (end.key and end.numa_node < 0)]
    nodes = [str(one.node) for one in near] or [str(end.numa_node)] * (end.numa_node >= 0)
    spans = ",".join(one.cpulist for one in near if one.cpulist), ",".join(nodes)
    return (*(cpulist(cpumap(each)) or "N/A" for each in spans), "N/A")


def _nic_legend(nics: Sequence[PathEnd]) -> Iterator[str]:
    if nics:
        yield from ("", "NIC Legend:", "", *(f"  NIC{number}: {nic.name}" for number, nic in enumerate(nics)))


_LEGEND = (
    "Legend:",
    "",
    "  X    = Self",
    "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)",
    "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node",
    "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)",
    "  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)",
    "  PIX  = Connection traversing at most a single PCIe bridge",
    "  NV#  = Connection traversing a bonded set of # NVLinks",
)
