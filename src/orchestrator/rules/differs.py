"""Facts that ought to be the same on every node: one table, one finding for each node that is the odd one out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import Topology
from orchestrator.rules.cluster import Cluster
from orchestrator.rules.registry import Rule

RULE = Rule(
    id="NODE-DIFFERS",
    title="a node differs from its peers",
    explain="Compares each node with the others; needs no list of known machines. The odd one out is named.",
    reads=(
        "NVML driver version", "GPU names", "/proc/sys/kernel/osrelease", "/sys/class/infiniband/*/fw_ver",
        "/sys/class/dmi/id/bios_version", "GPUs and cards behind each switch",
    ),
    source="NCCL src/init.cc (a version mismatch between ranks is fatal); comparison with peers",
    weight=40,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Fact:
    words: str
    where: str
    severity: Severity
    effect: str
    fix: str
    read: Callable[[Topology, Snapshot], str | None]


def _gpu_models(topology: Topology, _: Snapshot) -> str | None:
    return ", ".join(sorted({gpu.name for gpu in topology.gpus if gpu.name})) or None


def _kernel(_: Topology, snapshot: Snapshot) -> str | None:
    uname = snapshot.host.get("uname") or {}
    return str(uname.get("release") or "") or None if isinstance(uname, dict) else None


def _firmware(topology: Topology, _: Snapshot) -> str | None:
    versions = sorted({(port.board, port.firmware) for port in topology.rdma if port.firmware})
    return ", ".join(f"{board or 'card'} {firmware}" for board, firmware in versions) or None


def _switch_groups(topology: Topology, _: Snapshot) -> str | None:
    groups = []
    for switch in topology.switches:
        gpus = sum(gpu.switch == switch.key for gpu in topology.gpus)
        cards = len({port.address.rpartition(".")[0] for port in topology.rdma if port.switch == switch.key})
        if gpus:
            groups.append(f"{gpus} GPUs + {cards} RDMA cards")
    return "; ".join(sorted(groups)) or None


_FACTS = (
    _Fact(
        "NVIDIA driver", "NVML nvmlSystemGetDriverVersion", Severity.SLOW,
        "not measured: ranks may choose different transports, and CUDA versions may not match the stack",
        "install the peers' driver version on this node", lambda topology, _: topology.driver or None,
    ),
    _Fact(
        "GPU model", "NVML nvmlDeviceGetName", Severity.SLOW,
        "every step waits for the slowest GPU; the smallest memory bounds the KV cache",
        "use the same GPUs in one gang", _gpu_models,
    ),
    _Fact(
        "kernel", "uname -r", Severity.NOTE, "no known effect by itself", "install the peers' kernel", _kernel,
    ),
    _Fact(
        "RDMA card firmware", "/sys/class/infiniband/*/fw_ver", Severity.NOTE, "no known effect by itself",
        "bring the cards to one firmware (mlxfwmanager)", _firmware,
    ),
    _Fact(
        "BIOS", "/sys/class/dmi/id/bios_version", Severity.NOTE, "no known effect by itself",
        "bring the BIOS to one version",
        lambda _, snapshot: snapshot.text("/sys/class/dmi/id/bios_version") or None,
    ),
    _Fact(
        "switch population", "PCI tree", Severity.NOTE,
        "the other findings of this node say what it costs", "put the cards where the peers have them", _switch_groups,
    ),
)  # fmt: skip


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding for each fact and each odd node; quiet below three nodes and where no value has a majority."""
    for fact in _FACTS:
        odd = cluster.odd_ones(fact.read)
        if odd is None:
            continue
        common, nodes = odd
        for name, value in nodes.items():
            yield Finding(
                id=RULE.id,
                severity=fact.severity,
                node=name,
                devices=(fact.words,),
                title=f"{fact.words} is {value}, on the other nodes {common}",
                evidence=(f"{fact.where} = {value}",),
                effect=fact.effect,
                fix=fact.fix,
            )
