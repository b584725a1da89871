"""Whether NCCL will carry traffic between the GPUs of one node over its RDMA cards, and what its log then says.

Two GPUs of one node communicate over the network if both have a card no farther than PXB whose path to the GPU is
faster than the path between the GPUs (NCCL src/graph/paths.cc, ncclTopoCheckNet). The node then splits into groups that
NCCL counts as separate nodes (ncclTopoTrimSystem): `nNodes` and `localRanks` in its INFO line (src/init.cc) show it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.model.topology import Gpu, PathType, Topology
from orchestrator.topology.bandwidth import Bandwidths, Version, network_gbs
from orchestrator.topology.distance import Distances
from orchestrator.topology.network import rails
from orchestrator.topology.rdma import ports_by_card


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
    gpus = [gpu for gpu in topology.gpus if any(gpu.key == device.key for device in topology.pci)]
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
        tuple(gpu.index for gpu, home in zip(gpus, first, strict=True) if home == one) for one in sorted(set(first))
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
