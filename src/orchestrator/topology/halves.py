"""Whether NCCL will carry traffic between the GPUs of one node over its RDMA cards, and what its log then says.

Two GPUs of one node talk over the network where both have a card no farther than PXB whose way to the GPU is faster
than the way between the GPUs (NCCL src/graph/paths.cc, ncclTopoCheckNet). The node then falls into groups that NCCL
counts as nodes of their own (ncclTopoTrimSystem): `nNodes` and `localRanks` in its INFO line (src/init.cc) show it.
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
    """GPUs that reach each other without the network, by index; one group where the node stays whole.

    reason: the comparison that decided, with its figures in GB/s
    """

    groups: tuple[tuple[int, ...], ...]
    reason: str

    @property
    def over_network(self) -> bool:
        """Whether traffic inside the node uses the RDMA cards."""
        return len(self.groups) > 1


def gpu_groups(topology: Topology, nccl: Version) -> Groups:
    """The groups that NCCL makes of one node's GPUs. Ports of one card count together, as NCCL fuses them."""
    gpus = [gpu for gpu in topology.gpus if any(gpu.key == device.key for device in topology.pci)]
    bandwidths, distances = Bandwidths(topology, nccl), Distances(topology)
    near = {gpu.key: _near_network_gbs(gpu, topology, bandwidths, distances) for gpu in gpus}
    groups: list[list[Gpu]] = []
    reason = "every GPU reaches every other one at least as fast without the network"
    for gpu in gpus:
        home = None
        for group in groups:
            inside = bandwidths.between(gpu.key, group[0].key)
            network = min(near[gpu.key], near[group[0].key])
            if network > inside:
                reason = f"over the RDMA cards {network:g}, between the GPUs {inside:g} GB/s"
            elif home is None:
                home = group
                if distances.path_type(gpu.key, group[0].key) > PathType.PXB:
                    reason = f"over the RDMA cards {network:g}, not above {inside:g} GB/s between the GPUs"
        if home is None:
            groups.append([gpu])
        else:
            home.append(gpu)
    return Groups(tuple(tuple(gpu.index for gpu in group) for group in groups), reason)


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
