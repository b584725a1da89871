"""GPUs behind one switch that may not talk to each other directly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.model.finding import Finding, Severity
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="GPU-P2P-OFF",
    title="GPUs behind one switch can't reach each other's memory",
    explain=(
        "NCCL asks NVML whether reads and writes between two GPUs work. Where they do not, everything between them "
        "passes through host memory. Judged behind one switch; between sockets no peer-to-peer traffic is wanted."
    ),
    reads=("NVML nvmlDeviceGetP2PStatus (read, write)",),
    source="NCCL src/graph/paths.cc ncclTopoCheckP2p; NVML nvmlGpuP2PStatus_t",
    weight=22,
)
_STATUS = {
    1: "chipset not supported", 2: "GPU not supported", 3: "root port's topology not supported",
    4: "disabled by a registry key", 5: "not supported", 6: "unknown",
}  # fmt: skip


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding a node, with the GPUs concerned."""
    for node in cluster.nodes:
        broken = list(_broken(node))
        if broken:
            gpus = sorted({index for one, other, _ in broken for index in (one, other)})
            addresses = {gpu.index: gpu.address for gpu in node.topology.gpus}
            yield Finding(
                id=RULE.id,
                severity=Severity.SLOW,
                node=node.name,
                devices=tuple(addresses[index] for index in gpus),
                title=f"{len(broken)} pair{'s' if len(broken) > 1 else ''} of GPUs behind one switch can't reach each "
                f"other directly (GPUs {', '.join(map(str, gpus))})",
                evidence=tuple(words for *_, words in broken[:6]),
                effect="NCCL stages through host memory between them; " + price(Traffic.CARD_ON_ROOT_PORT),
                fix="driver version and parameters (NVreg_*), ACS and IOMMU settings; nvidia-smi topo -p2p rw",
            )


def _broken(node: Node) -> Iterator[tuple[int, int, str]]:
    switches = {gpu.index: gpu.switch for gpu in node.topology.gpus if gpu.index >= 0}
    for device in node.nvml_devices:
        pairs, one = device.get("p2p"), device.get("index")
        if not isinstance(pairs, Mapping) or not isinstance(one, int) or not switches.get(one):
            continue
        for text, status in pairs.items():
            other = int(text) if isinstance(text, str) and text.isdecimal() else -1
            if switches.get(other) == switches[one] and isinstance(status, Mapping):
                bad = {way: value for way, value in status.items() if isinstance(value, int) and value}
                if bad:
                    words = ", ".join(f"{way} {value} ({_STATUS.get(value, 'unknown')})" for way, value in bad.items())
                    yield one, other, f"NVML of GPU {one}: nvmlDeviceGetP2PStatus to GPU {other}: {words}"
