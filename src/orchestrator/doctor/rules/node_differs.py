"""Facts that ought to be the same on every node: one table, one finding for each node that is the odd one out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from orchestrator.doctor.rules.support.cluster import Cluster, Input, Node
from orchestrator.doctor.rules.support.registry import Rule, finding
from orchestrator.model.finding import Finding
from orchestrator.model.per_node import collected
from orchestrator.model.topology import RAILS, Gpu, PcieLink
from orchestrator.protocol.severity import Severity
from orchestrator.topology.network import gid_index
from orchestrator.topology.rdma import card_of, ports_by_card
from orchestrator.topology.stated import nccl_speeds


@Rule(
    id="NODE-DIFFERS",
    title="a node differs from its peers",
    explain=(
        "Compares each node with the others of its gang (small gangs together); needs no list of known machines. The"
        " finding is for the node that differs; where no value has a majority, it is for the cluster."
    ),
    reads=(
        "NVML versions and GPU names",
        "/proc/sys/kernel/osrelease",
        "/sys/class/infiniband/*/fw_ver",
        "/sys/class/dmi/id/*",
        "GPUs and cards behind each switch, their slots and best links",
        "GID indices, /sys/class/infiniband/*/ports/*/rate",
        "/sys/module/*/version",
    ),
    source="NCCL src/init.cc (a version mismatch between ranks is fatal); comparison with peers",
    weight=40,
).of_cluster
def node_differs(cluster: Cluster) -> Iterator[Finding]:
    """One finding for each fact and each odd node."""
    for fact in _FACTS:
        for name, values, common in cluster.differing(fact.read):
            having = collected((value, node) for node, value in values.items())
            each = "; ".join(f"{value} on {', '.join(nodes)}" for value, nodes in having.items())
            read = f"{fact.where} = "
            yield finding(
                fact.severity,
                f"{fact.words} is {values[name]}, on the other nodes {common}"
                if name
                else f"the nodes differ in their {fact.words}: {each}",
                *([read + values[name]] if name else [f"{who}: {read}{value}" for who, value in values.items()]),
                effect=fact.effect,
                fix=fact.fix if name else "make them the same",
                devices=(fact.words,),
                node=name,
            )


@dataclass(frozen=True, slots=True)
class _Fact:
    words: str
    where: str
    severity: Severity
    effect: str
    fix: str
    read: Callable[[Node], str | None]


def _answering(node: Node) -> list[Gpu]:
    """GPUs of a node where none is missing; what missing ones make of the comparison is GPU-MISSING's business."""
    gpus = [gpu for gpu in node.topology.gpus if gpu.index >= 0 and not gpu.lost]
    return gpus if len(gpus) >= node.spec.gpus else []


def _gpu_models(node: Node) -> str | None:
    return _of_gpus(node, (gpu.name for gpu in _answering(node)))


def _gpu_links(node: Node) -> str | None:
    return _of_gpus(node, (_best_link(gpu.link_max) for gpu in _answering(node)))


def _of_rails(read: Callable[[Node], str | None]) -> Callable[[Node], str | None]:
    """Not known where what tells the rails was not read."""
    return lambda node: None if node.topology.lacks(*RAILS) else read(node)


@_of_rails
def _card_links(node: Node) -> str | None:
    cards = {card_of(port): node.devices.get(port.key) for port in node.rail_ports}
    return _counted(_best_link(device.link_max) if device else "" for device in cards.values())


def _counted_speeds(node: Node) -> str | None:
    """What NCCL's graph has of the links of its network cards."""
    return _of_gpus(node, (f"{gbs} GB/s" for kind, _, gbs in nccl_speeds(node.snapshot) if kind == "NIC"))


def _best_link(link: PcieLink) -> str:
    return link.words if link.width and link.speed_gts else ""


@_of_rails
def _card_slots(node: Node) -> str | None:
    slots = {device.slot for port in node.rail_ports if (device := node.devices.get(port.key)) and device.slot}
    return ", ".join(sorted(slots)) or None


@_of_rails
def _card_count(node: Node) -> str | None:
    return str(len(ports_by_card(node.rail_ports))) if node.topology.pci else None


def _firmware(node: Node) -> str | None:
    versions = {(port.board, port.firmware) for port in node.rail_ports if port.firmware}
    return ", ".join(f"{board or 'card'} {firmware}" for board, firmware in sorted(versions)) or None


@_of_rails
def _gid_indices(node: Node) -> str | None:
    chosen = (gid_index(port, node.topology).index for port in node.rail_ports)
    return ", ".join(str(index) for index in sorted({index for index in chosen if index is not None})) or None


@_of_rails
def _switch_groups(node: Node) -> str | None:
    gpus = Counter(gpu.switch for gpu in node.topology.gpus)
    cards = collected((port.switch, port) for port in node.topology.rdma if not port.virtual)
    counts = ((gpus[switch.key], len(ports_by_card(cards.get(switch.key, ())))) for switch in node.gpu_switches)
    return "; ".join(sorted(f"{gpus} GPUs + {cards} RDMA cards" for gpus, cards in counts)) or None


def _file(path: str) -> Callable[[Node], str | None]:
    return lambda node: node.snapshot.text(path) or None


def _nvml(name: str) -> Callable[[Node], str | None]:
    return lambda node: str(node.snapshot.nvml.get(name) or "") or None


def _vbios(node: Node) -> str | None:
    return _of_gpus(node, (str(gpu.get("vbios") or "") for gpu in node.nvml_devices)) if _answering(node) else None


def _of_gpus(node: Node, values: Iterable[str]) -> str | None:
    """Of a pasted text the one kind that its GPUs or cards have, if they have one: it need not show all."""
    if node.input is not Input.PASTED:
        return _counted(values)
    kinds = {*values}
    return kinds.pop() or None if len(kinds) == 1 else None


def _counted(values: Iterable[str]) -> str | None:
    """'8 x NVIDIA L40S' or '7 x NVIDIA L40S, 1 x NVIDIA L40'; None where one of them is not known ('')."""
    counts = sorted(Counter(values).items(), key=lambda item: (-item[1], item[0]))
    if any(not value for value, _ in counts):
        return None
    return ", ".join(f"{count} x {value}" for value, count in counts) or None


_NO_EFFECT = "no known effect by itself"
_SLOWEST = "every step of the gang waits for the slowest GPU"

_FACTS = (
    _Fact(
        "NVIDIA driver", "NVML nvmlSystemGetDriverVersion", Severity.SLOW,
        "not measured: ranks may choose different transports, and CUDA versions may not match the stack",
        "install the peers' driver version on this node", _nvml("driver"),
    ),
    _Fact(
        "GPU set", "NVML nvmlDeviceGetName", Severity.SLOW,
        f"{_SLOWEST}; the smallest memory limits the KV cache", "use the same GPUs in one gang", _gpu_models,
    ),
    _Fact(
        "best PCIe link of the GPUs", "/sys/bus/pci/devices/*/max_link_{speed,width}", Severity.SLOW,
        f"{_SLOWEST} (not measured)", "move the GPUs to the same kind of slots as on the peers", _gpu_links,
    ),
    _Fact(
        "best PCIe link of the RDMA cards", "/sys/bus/pci/devices/*/max_link_{speed,width}", Severity.SLOW,
        "the slowest card limits every all-reduce (not measured)", "use the same cards as the peers", _card_links,
    ),
    _Fact(
        "PCIe bandwidth of the network cards", "NCCL's graph", Severity.SLOW,
        "the slowest card limits every all-reduce (not measured)", "use the same cards and slots as the peers",
        _counted_speeds,
    ),
    _Fact(
        "speed of the RDMA ports", "/sys/class/infiniband/*/ports/*/rate", Severity.SLOW,
        "the slowest port limits every all-reduce (not measured)",
        "use the peers' kind of cable, module and switch port: `ethtool INTERFACE`, `mlxlink -d DEVICE`",
        _of_rails(lambda n: ", ".join(sorted({f"{port.rate_gbps:g} Gb/s" for port in n.usable
                                              if port in n.rail_ports and port.rate_gbps})) or None),
    ),
    _Fact(
        "number of RDMA cards", "/sys/class/infiniband", Severity.SLOW,
        "NCCL uses as many ports as the node with the fewest has; it logs this only at INFO level",
        "add the missing card, or check that its driver is loaded", _card_count,
    ),
    _Fact(
        "slots of the RDMA cards", "/sys/bus/pci/slots/*/address", Severity.NOTE,
        "see the other findings of this node for the cost", "move the cards to the same slots as on the peers",
        _card_slots,
    ),
    _Fact(
        "population of the GPU switches", "PCI tree", Severity.NOTE,
        "see the other findings of this node for the cost", "move the cards to the same slots as on the peers",
        _switch_groups,
    ),
    _Fact(
        "GID index of the rails", "/sys/class/infiniband/*/ports/*/gids", Severity.NOTE,
        "none with NCCL 2.21 or newer, which finds each node's own index; older versions need one index for all",
        "give the interfaces one IPv4 address each, in the same order", _gid_indices,
    ),
    _Fact(
        "kernel", "uname -r", Severity.NOTE, _NO_EFFECT, "install the peers' kernel",
        lambda node: node.kernel_release or None,
    ),
    _Fact(
        "RDMA card firmware", "/sys/class/infiniband/*/fw_ver", Severity.NOTE, _NO_EFFECT,
        "install the same firmware on all cards (`mlxfwmanager`)", _firmware,
    ),
    _Fact(
        "RDMA driver", "/sys/module/mlx5_core/version", Severity.NOTE, _NO_EFFECT, "install the peers' OFED",
        _file("/sys/module/mlx5_core/version"),
    ),
    _Fact(
        "BIOS", "/sys/class/dmi/id/bios_version", Severity.NOTE, _NO_EFFECT,
        "install the same BIOS version on all nodes", _file("/sys/class/dmi/id/bios_version"),
    ),
    _Fact(
        "machine", "/sys/class/dmi/id/{sys_vendor,product_name}", Severity.NOTE, _NO_EFFECT, "none needed",
        lambda node: node.product or None,
    ),
    _Fact(
        "GPU firmware (VBIOS)", "NVML nvmlDeviceGetVbiosVersion", Severity.NOTE, _NO_EFFECT,
        "install the same VBIOS on all GPUs", _vbios,
    ),
    _Fact(
        "CPU", "/proc/cpuinfo", Severity.NOTE,
        "NCCL assumes a different inter-socket speed for a different CPU", "none needed",
        lambda node: node.topology.cpu.name or None,
    ),
)  # fmt: skip
