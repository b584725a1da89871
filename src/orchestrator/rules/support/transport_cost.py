"""What the settings cost that take a transport from NCCL, on the machine where they are set.

Names and values: NCCL user guide, environment variables. Figures in GB/s are NCCL's own (topology/bandwidth.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from orchestrator.model.topology import Gpu, PathType
from orchestrator.protocol.layout import Layout
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.topology.bandwidth import Bandwidths, p2p_level
from orchestrator.topology.distance import Distances
from orchestrator.topology.gpu_groups import Groups, gpu_groups
from orchestrator.topology.speed import Traffic, price

PEERMEM = (
    "/sys/kernel/mm/memory_peers/nv_mem/version", "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "/sys/module/nvidia_peermem/version",
)  # fmt: skip
OLDEST_WITH_DMA_BUF = (5, 12)
_OFF = ("", "0")
_NEVER = ("0", "LOC")
"""Values of a *_LEVEL that let nothing through between two devices."""


@dataclass(frozen=True)
class _NodeSettings:
    """One node, as far as a setting can take something from it."""

    node: Node
    nccl: tuple[int, ...]
    alone: bool
    """Its gang has no other node."""
    layout: Layout | None = None

    @cached_property
    def distances(self) -> Distances:
        return Distances(self.node.topology)

    @cached_property
    def pairs(self) -> list[tuple[Gpu, Gpu]]:
        known = {device.key for device in self.node.topology.pci}
        return list(combinations([gpu for gpu in self.node.gpus if gpu.key in known], 2))

    @cached_property
    def direct(self) -> list[tuple[Gpu, Gpu]]:
        """Pairs of GPUs that NCCL connects without the host's memory."""
        level = p2p_level(self.node.topology, self.nccl)
        return [pair for pair in self.pairs if self.distances.path_type(pair[0].key, pair[1].key) <= level]

    @cached_property
    def groups(self) -> Groups:
        return gpu_groups(self.node.topology, self.nccl)

    def near_a_card(self) -> bool:
        """Whether a usable card and a GPU have no CPU between them, as GPUDirect RDMA wants it."""
        return any(
            self.distances.path_type(gpu.key, port.key) <= PathType.PXB
            for gpu in self.node.gpus
            for port in self.node.usable
            if gpu.key and port.key
        )

    def apart(self) -> list[tuple[Gpu, Gpu]]:
        """Pairs that meet in the host's memory: neither directly nor over the cards."""
        home = {index: place for place, group in enumerate(self.groups.groups) for index in group}
        return [pair for pair in self.pairs if pair not in self.direct and home.get(pair[0].index) == home.get(
            pair[1].index)]  # fmt: skip


def _no_p2p(machine: _NodeSettings) -> str:
    joined = len(machine.direct)
    if not joined:
        return ""
    many = f"{joined} of {len(machine.pairs)} pairs of GPUs communicate through host memory, not directly"
    return f"{many}; {price(Traffic.CARD_ON_ROOT_PORT)}"


def _no_rdma(machine: _NodeSettings) -> str:
    if not machine.node.usable or (machine.alone and not machine.groups.over_network):
        return ""
    where = "between the halves of the node" if machine.alone else "between nodes"
    ports = "1 RDMA port stays" if len(machine.node.usable) == 1 else f"{len(machine.node.usable)} RDMA ports stay"
    cost = price(Traffic.TCP, None if machine.alone else machine.layout)
    return f"everything {where} crosses TCP, {ports} unused; {cost}"


def _no_shm(machine: _NodeSettings) -> str:
    apart = machine.apart()
    if not apart:
        return ""
    many = "1 pair of GPUs communicates" if len(apart) == 1 else f"{len(apart)} pairs of GPUs communicate"
    if not machine.node.usable:
        return f"{many} over TCP instead of host memory: no RDMA port is usable; {price(Traffic.TCP)}"
    bandwidths = Bandwidths(machine.node.topology, machine.nccl)
    inside = min(bandwidths.between(one.key, other.key) for one, other in apart)
    card = max(port.rate_gbps for port in machine.node.usable) / 8
    return f"{many} over the RDMA cards ({card:g} GB/s a port) instead of host memory ({inside:g} GB/s)"


def _no_gdr(machine: _NodeSettings) -> str:
    if not machine.near_a_card():
        return ""
    return f"all data between card and GPU passes through host memory; {price(Traffic.HOST_STAGED)}"


_Cost = Callable[[_NodeSettings], str]
_COSTS: Mapping[str, tuple[Callable[[str], bool], _Cost]] = {
    "NCCL_P2P_DISABLE": (lambda value: value not in _OFF, _no_p2p),
    "NCCL_P2P_LEVEL": (lambda value: value in _NEVER, _no_p2p),
    "NCCL_IB_DISABLE": (lambda value: value not in _OFF, _no_rdma),
    "NCCL_NET": (lambda value: value.lower() == "socket", _no_rdma),
    "NCCL_SHM_DISABLE": (lambda value: value not in _OFF, _no_shm),
    "NCCL_NET_GDR_LEVEL": (lambda value: value in _NEVER, _no_gdr),
}


def has_gpudirect(node: Node) -> bool:
    """Whether a card can reach GPUs' memory: by nvidia-peermem, or by dma-buf."""
    dma_buf = "Open Kernel Module" in node.snapshot.text("/proc/driver/nvidia/version")
    return any(map(node.snapshot.exists, PEERMEM)) or (dma_buf and kernel(node) >= OLDEST_WITH_DMA_BUF)


def kernel(node: Node) -> tuple[int, int]:
    """Major and minor; an unknown kernel counts as new."""
    found = re.match(r"(\d{1,4})\.(\d{1,4})", node.kernel_release)
    return (int(found[1]), int(found[2])) if found else (999, 0)


def direct(cluster: Cluster, node: Node) -> tuple[str, ...]:
    """What NCCL would do here between devices without the host's memory, by the machine and the inventory's l40s_env;
    () without NVIDIA's driver."""
    off = {name for name, value in node.spec.overrides.env if name in _COSTS and _COSTS[name][0](value.strip())}
    machine = _NodeSettings(node, cluster.nccl_version(node), cluster.is_alone(node.spec.gang))
    ways = {
        "peer-to-peer between GPUs": bool(machine.direct) and not off & {"NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"},
        "GPUDirect RDMA": machine.near_a_card()
        and has_gpudirect(node)
        and not off & {"NCCL_NET_GDR_LEVEL", "NCCL_IB_DISABLE", "NCCL_NET"},
    }
    return tuple(name for name, planned in ways.items() if planned and node.nvml_devices)


def cost(cluster: Cluster, node: Node, name: str, value: str) -> str:
    """What a setting costs on this node, as text; '' if it costs nothing here."""
    takes, words = _COSTS.get(name, (None, None))
    if takes is None or words is None or not takes(value.strip()):
        return ""
    layout = cluster.layouts.get(node.spec.gang)
    return words(_NodeSettings(node, cluster.nccl_version(node), cluster.is_alone(node.spec.gang), layout))
