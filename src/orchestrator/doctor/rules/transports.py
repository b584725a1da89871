"""The network that NCCL takes between nodes, and settings that take one of its transports away.

Names and values: NCCL user guide, environment variables. Figures in GB/s are NCCL's own (topology/distance.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations

from orchestrator.doctor.rules.support.cluster import Cluster, Node
from orchestrator.doctor.rules.support.registry import Rule, finding, note, slow, unknown
from orchestrator.model.finding import Finding
from orchestrator.model.snapshot import part
from orchestrator.model.topology import RAILS, Area, Gpu, PathType
from orchestrator.model.words import counted
from orchestrator.planning.choices import ASKED, TCP, over_tcp
from orchestrator.topology.distance import Bandwidths, Distances, gpu_groups, p2p_level
from orchestrator.topology.speed import Traffic, price, tcp_severity


@Rule(
    id="TRAFFIC-ON-TCP",
    title="all traffic between the nodes would use TCP",
    explain="If one node has no usable RDMA port, all nodes of the gang use TCP: NCCL needs one network on all ranks.",
    reads=("everything that decides whether an RDMA port is usable",),
    source="NCCL src/plugin/net.cc (one network for a communicator); the articles' third fault",
    weight=12,
    needs=RAILS,
).of_node
def traffic_on_tcp(node: Node) -> Iterator[Finding]:
    """Where a node has cards and no usable port; quiet where TCP was asked for, or one node is all."""
    physical = any(not port.virtual for port in node.topology.rdma)
    if not physical or node.usable or node.spec.transport == "tcp" or node.alone:
        return
    choice = node.tcp
    yield finding(
        tcp_severity(node.layout),
        f"no RDMA port of this node can carry the gang's traffic: all of it uses {_tcp_ports(node)}",
        *(
            f"{port.device}: {port.state or 'state unreadable'}, "
            f"{'behind a switch' if port.switch else 'on a root port'}, netdev {port.netdev or 'none'}"
            for port in node.topology.rdma
        ),
        *((f"TCP side = {choice.address}; {choice.reason}",) if choice else ()),
        effect=price(Traffic.TCP, node.layout),
        fix="correct the ports named in this node's other findings; `l40s-deploy discover` shows them in the tree",
        devices=(choice.interface,) if choice else (),
    )


def _tcp_ports(node: Node) -> str:
    """What is left where RDMA is not: in words."""
    side = node.tcp_side
    if side in node.interfaces and len(node.interfaces[side].slaves) > 1:
        return f"TCP on {side}"
    return f"one TCP port, {side}" if side else "TCP"


def _told_by_log(node: Node) -> list[Finding] | None:
    return [_as_nccl_wrote(node)] if node.topology.sockets else None


@Rule(
    id=TCP,
    title="traffic between the nodes uses TCP",
    explain=(
        "NCCL needs one network on all ranks, so if one node has no RDMA device, all nodes of the gang use TCP."
        " Severity: slow where tensor parallelism crosses nodes, note where only pipeline stages do. The rule uses"
        " the running layout, else the plan's, else tensor parallelism over all nodes. TRAFFIC-ON-TCP reports a node"
        " with cards but no usable port."
    ),
    reads=("/sys/class/infiniband", "l40s_transport", "the layout of the running gang"),
    source="NCCL src/plugin/net.cc (one network for a communicator); the articles' third fault",
    weight=13,
    needs=(Area.PCI, Area.RDMA),
    on_text=_told_by_log,
).of_cluster
def transport_tcp(cluster: Cluster) -> Iterator[Finding]:
    """One finding on each node without an RDMA device; on the leader where the inventory asks for TCP; a note on what
    NCCL's own file shows. An engine on CPU communicates by Gloo, which knows no RDMA."""
    yield from (_as_nccl_wrote(node) for node in cluster.nodes if node.topology.sockets)
    if not cluster.saved:
        for gang in cluster.gangs:
            yield from _gang_over_tcp(gang)


def _gang_over_tcp(gang: Sequence[Node]) -> Iterator[Finding]:
    first = gang[0]
    if first.alone or any(node.stack and node.stack.device == "cpu" for node in gang):
        return
    asked = {node.spec.transport for node in gang}
    if asked == {"tcp"}:
        yield over_tcp(first.spec.gang, ASKED, first.layout, node=first.name)
    elif "tcp" not in asked:
        without = (node for node in gang if not node.topology.rdma)
        why = "it has no RDMA device"
        yield from (over_tcp(first.spec.gang, why, first.layout, node=node.name) for node in without)


def _as_nccl_wrote(node: Node) -> Finding:
    names = node.topology.sockets
    return note(
        f"NCCL used TCP: this topology lists {counted(len(names), 'socket')} as its network",
        f'<net port="0">: {", ".join(names)}',
        effect="whether the node has RDMA ports too is not known: NCCL writes those that it uses",
        fix="run `l40s-deploy doctor` on the node itself, which shows its RDMA ports",
        devices=names,
        node=node.name,
    )


@Rule(
    id="NCCL-SETTINGS",
    title="l40s_env turns off one of NCCL's transports",
    explain=(
        "NCCL_P2P_DISABLE, NCCL_IB_DISABLE, NCCL_SHM_DISABLE and similar settings are often copied from machine to"
        " machine as workarounds. Each turns off a path that this machine may need; one that turns off nothing here is"
        " not reported. NCCL-FILES reports the same settings in nccl.conf. A unit's or a shell's NCCL_* have no"
        " effect: the launch script clears what the plan did not set."
    ),
    reads=("`l40s_env` of the inventory", "path types of GPUs and RDMA cards"),
    source="NCCL user guide, environment variables; templates/launch.sh.j2",
    weight=27,
    needs=(*RAILS, Area.NUMA),
).of_node
def nccl_settings(node: Node) -> Iterator[Finding]:
    """One finding for each setting."""
    for name, value in node.spec.overrides.env:
        lost = _cost(node, name, value)
        if lost:
            yield slow(
                f"l40s_env sets {name}={value}",
                f"inventory: {node.name}: l40s_env.{name} = {value}",
                effect=lost,
                fix=f"remove {name} from l40s_env, then run `l40s-deploy doctor` to find the problem that it worked"
                " around",
                devices=(name,),
            )


@Rule(
    id="NCCL-FILES",
    title="a file on the node changes NCCL's settings",
    explain=(
        "NCCL reads every setting that the environment does not have from .nccl.conf in the home directory of the"
        " engine's user, then from /etc/nccl.conf. If virtualTopology.xml exists, NCCL reads the topology from it"
        " instead of the machine."
    ),
    reads=("/etc/nccl.conf", "/var/run/nvidia-topologyd/virtualTopology.xml", "~/.nccl.conf of the engine's user"),
    source="NCCL src/misc/param.cc initEnvFunc, src/graph/topo.cc ncclTopoGetSystem",
    weight=62,
).of_node
def nccl_files(node: Node) -> Iterator[Finding]:
    """One note for each file; unknown where the user's file could not be read."""
    machines, topology, _ = nccl_files.reads
    users = part(node.snapshot.host, "nccl_conf")
    path, error = str(users.get("path") or ""), str(users.get("error") or "")
    yield from _settings(node, machines, node.snapshot.text(machines))
    if error:
        yield unknown(
            f"{path} could not be read",
            f"{path}: {error}",
            effect="settings there apply to every variable that the plan does not set",
            fix=f"read {path} as the engine's user, or set ansible_become: true in the inventory",
            devices=(path,),
        )
    else:
        yield from _settings(node, path, str(users.get("text") or ""))
    if node.snapshot.exists(topology):
        yield note(
            "NCCL reads the topology from a file, not from the machine",
            f"{topology}: exists",
            effect="NCCL may use other paths than those reported here",
            fix=f"on bare metal, remove {topology}; to compare, `l40s-deploy doctor --dump-xml topologies` writes the"
            " topology of the machine",
            devices=(topology,),
        )


def _settings(node: Node, path: str, text: str) -> Iterator[Finding]:
    lines = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    pairs = [(line.partition("=")[0], line.partition("=")[2]) for line in lines]
    costs = [f"{name}: {words}" for name, value in pairs if (words := _cost(node, name, value))]
    if lines:
        yield note(
            f"{path} sets {', '.join(name for name, _ in pairs[:6])}",
            *(f"{path}: {line}" for line in lines[:6]),
            effect="; ".join(["they apply to every variable that the plan does not set", *costs]),
            fix=f"remove the lines from {path} on {node.name}, or compare them with `l40s-deploy plan`",
            devices=(path,),
        )


def _cost(node: Node, name: str, value: str) -> str:
    """What a setting costs on this node, as text; '' if it costs nothing here."""
    takes, words = _COSTS.get(name, (None, None))
    return words(_Without(node)) if takes and words and takes(value.strip()) else ""


_OFF = ("", "0")
_NEVER = ("0", "LOC")
"""Values of a *_LEVEL that let nothing through between two devices."""


class _Without:
    """One node, and what it loses without one of its transports."""

    def __init__(self, node: Node) -> None:
        self.node, self.distances, self.groups = node, Distances(node.topology), gpu_groups(node.topology, node.nccl)
        known = {device.key for device in node.topology.pci}
        self.pairs = list(combinations([gpu for gpu in node.gpus if gpu.key in known], 2))

    @cached_property
    def direct(self) -> list[tuple[Gpu, Gpu]]:
        """Pairs of GPUs that NCCL connects without the host's memory."""
        level = p2p_level(self.node.topology, self.node.nccl)
        return [pair for pair in self.pairs if self.distances.path_type(pair[0].key, pair[1].key) <= level]

    def p2p(self) -> str:
        if not self.direct:
            return ""
        many = f"{len(self.direct)} of {len(self.pairs)} pairs of GPUs communicate through host memory, not directly"
        return f"{many}; {price(Traffic.CARD_ON_ROOT_PORT)}"

    def rdma(self) -> str:
        usable, alone = len(self.node.usable), self.node.alone
        if not usable or (alone and not self.groups.over_network):
            return ""
        where = "between the halves of the node" if alone else "between nodes"
        ports = "1 RDMA port stays" if usable == 1 else f"{usable} RDMA ports stay"
        cost = price(Traffic.TCP, None if alone else self.node.layout)
        return f"everything {where} crosses TCP, {ports} unused; {cost}"

    def shm(self) -> str:
        """Of pairs that meet in the host's memory: neither directly nor over the cards."""
        home = {index: place for place, group in enumerate(self.groups.groups) for index in group}
        apart = [
            pair for pair in self.pairs if pair not in self.direct and len({home.get(gpu.index) for gpu in pair}) == 1
        ]
        if not apart:
            return ""
        many = "1 pair of GPUs communicates" if len(apart) == 1 else f"{len(apart)} pairs of GPUs communicate"
        if not self.node.usable:
            return f"{many} over TCP instead of host memory: no RDMA port is usable; {price(Traffic.TCP)}"
        bandwidths = Bandwidths(self.node.topology, self.node.nccl)
        inside = min(bandwidths.between(first.key, other.key) for first, other in apart)
        card = max(port.rate_gbps for port in self.node.usable) / 8
        return f"{many} over the RDMA cards ({card:g} GB/s a port) instead of host memory ({inside:g} GB/s)"

    def gdr(self) -> str:
        words = f"all data between card and GPU passes through host memory; {price(Traffic.HOST_STAGED)}"
        return words if self.near_a_card() else ""

    def near_a_card(self) -> bool:
        """Whether a usable card and a GPU have no CPU between them, as GPUDirect RDMA wants it."""
        return any(
            self.distances.path_type(gpu.key, port.key) <= PathType.PXB
            for gpu in self.node.gpus
            for port in self.node.usable
            if gpu.key and port.key
        )


_COSTS: Mapping[str, tuple[Callable[[str], bool], Callable[[_Without], str]]] = {
    "NCCL_P2P_DISABLE": (lambda value: value not in _OFF, _Without.p2p),
    "NCCL_P2P_LEVEL": (lambda value: value in _NEVER, _Without.p2p),
    "NCCL_IB_DISABLE": (lambda value: value not in _OFF, _Without.rdma),
    "NCCL_NET": (lambda value: value.lower() == "socket", _Without.rdma),
    "NCCL_SHM_DISABLE": (lambda value: value not in _OFF, _Without.shm),
    "NCCL_NET_GDR_LEVEL": (lambda value: value in _NEVER, _Without.gdr),
}


PEERMEM = (
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "/sys/module/nvidia_peermem/version",
)
DRIVER = "/proc/driver/nvidia/version"
OLDEST_WITH_DMA_BUF = (5, 12)


def has_gpudirect(node: Node) -> bool:
    """Whether a card can reach GPUs' memory: by nvidia-peermem, or by dma-buf."""
    dma_buf = "Open Kernel Module" in node.snapshot.text(DRIVER)
    return any(map(node.snapshot.exists, PEERMEM)) or (dma_buf and kernel(node) >= OLDEST_WITH_DMA_BUF)


def kernel(node: Node) -> tuple[int, int]:
    """Major and minor; an unknown kernel counts as new."""
    match = re.match(r"(\d{1,4})\.(\d{1,4})", node.kernel_release)
    return (int(match[1]), int(match[2])) if match else (999, 0)


def direct(node: Node) -> tuple[str, ...]:
    """What NCCL would do here between devices without the host's memory, by the machine and the inventory's l40s_env;
    () without NVIDIA's driver."""
    off = {name for name, value in node.spec.overrides.env if name in _COSTS and _COSTS[name][0](value.strip())}
    machine = _Without(node)
    ways = {
        "peer-to-peer between GPUs": machine.direct and not off & {"NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"},
        "GPUDirect RDMA": machine.near_a_card()
        and has_gpudirect(node)
        and not off & {"NCCL_NET_GDR_LEVEL", "NCCL_IB_DISABLE", "NCCL_NET"},
    }
    return tuple(name for name, planned in ways.items() if planned and node.nvml_devices)
