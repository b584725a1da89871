"""What a recording or NCCL's XML does not contain, or a look could not read, and which rules can't judge for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.doctor.rules.support.cluster import Cluster, Input, Node
from orchestrator.doctor.rules.support.registry import INCOMPLETE, MOST_PATHS, Rule, all_rules, unknown
from orchestrator.model.finding import Finding
from orchestrator.model.topology import PcieLink
from orchestrator.topology.stated import lacking_of


@Rule(
    id=INCOMPLETE,
    title="this input is incomplete",
    explain=(
        "A copy of /sys or NCCL's topology file shows where devices are, and little else. Rules that need more report"
        " nothing, which does not mean that all is well. A snapshot from `discover --save` contains everything that"
        " could be read; what hung, or was not read in time on a busy machine, is named here with its rules."
    ),
    reads=("which kinds of facts the input holds",),
    source="design: what could not be read is unknown, never counted as fine",
    weight=90,
).of_cluster
def not_recorded(cluster: Cluster) -> Iterator[Finding]:
    """One unknown finding for each node recorded with another tool, and for each that was not read in full."""
    for node in cluster.nodes:
        missing = _missing(node, alone=len(cluster.nodes) == 1)
        if node.input is Input.PASTED:
            yield from _untold(node, missing)
            continue
        if node.topology.unread:
            yield _unread(node)
        ids = [name for kind in missing for name in kind.rules]
        if node.input is Input.XML:
            yield _blind(node, ids, f"of {len(all_rules())} rules could not run on NCCL's topology file", effect="")
        elif missing:
            title = "rules could not run: this input does not contain " + ", ".join(kind.words for kind in missing)
            yield _blind(node, ids, title, *(f"no {kind.words}: {', '.join(kind.rules)}" for kind in missing))


def _missing(node: Node, *, alone: bool) -> list[_RecordKind]:
    """What a node's record has not; beside others nobody misses other nodes."""
    if node.input in (Input.LIVE, Input.SNAPSHOT):
        return []
    return [kind for kind in _KINDS if (alone or kind.words != _OTHERS) and not kind.there(node)]


_MAY_EXIST = "the faults that these rules find may exist"


def _blind(node: Node, ids: Sequence[str], title: str, *evidence: str, effect: str = _MAY_EXIST) -> Finding:
    return unknown(
        f"{len(ids)} {title}",
        *evidence,
        effect=effect,
        fix=node.input.again,
        devices=tuple(ids),
        node=node.name,
    )


@dataclass(frozen=True, slots=True)
class _RecordKind:
    words: str
    there: Callable[[Node], bool]
    rules: tuple[str, ...]


def _any_file(*endings: str) -> Callable[[Node], bool]:
    return lambda node: any(path.endswith(endings) for path in node.snapshot.files)


def _any_path(part: str) -> Callable[[Node], bool]:
    return lambda node: any(part in path for path in node.snapshot.files)


_OTHERS = "other nodes"
_KINDS = (
    _RecordKind("NVML's answers", lambda node: bool(node.nvml_devices) and node.input is not Input.PASTED,
          ("GPU-HEALTH", "GPU-MISSING", "GPU-NOT-USED", "GPU-P2P-OFF", "GPU-BAR1-SMALL", "GPU-MODE", "GPU-BUSY",
           "GPU-ECC", "GPU-MIXED", "GDR-MISSING", "NVML-UNREADABLE")),
    _RecordKind("whether there are RDMA devices", lambda node: bool(node.topology.rdma or node.snapshot.files),
          ("TRANSPORT-TCP",)),
    _RecordKind("states of RDMA ports that are down", _any_file("/state"), ("RDMA-PORT-DOWN", "TRAFFIC-ON-TCP")),
    _RecordKind("link layers of RDMA ports", lambda node: any(port.link_layer for port in node.topology.rdma),
          ("RAIL-LINK-LAYER",)),
    _RecordKind("addresses", lambda node: "addresses" in node.snapshot.host,
          ("RAIL-CROSSED", "RAILS-SHARE-SUBNET", "RDMA-PORT-UNCONFIGURED", "NO-COMMON-NETWORK", "PUBLIC-ADDRESS")),
    _RecordKind("network interfaces", lambda node: bool(node.topology.interfaces), ("RAIL-MTU", "BOND-SHORT")),
    _RecordKind("configuration spaces beyond 64 bytes",
          lambda node: any(len(text) > 512 for path, text in node.snapshot.files.items() if path.endswith("/config")),
          ("ACS-REDIRECT", "PCIE-SETTINGS", "ATS-OFF")),
    _RecordKind("current link widths and speeds",
          lambda node: any(device.link != PcieLink() for device in node.topology.pci) and bool(node.snapshot.files),
          ("PCIE-LINK-REDUCED",)),
    _RecordKind("the NUMA domain of each device", _any_file("/numa_node"), ("NUMA-UNKNOWN",)),
    _RecordKind("IOMMU groups", _any_path("/iommu_groups/"), ("IOMMU-TRANSLATING",)),
    _RecordKind("error counters", _any_path("/hw_counters/"), ("RDMA-LOSSES", "RDMA-CONGESTED", "PCIE-ERRORS")),
    _RecordKind("limits, clock, kernel log, device files and flow control", lambda node: "limits" in node.snapshot.host,
          ("LIMITS", "CLOCK-SKEW", "GPU-XID", "RDMA-CARD-FAILED", "RDMA-NO-DEVICE-FILE", "LOSSLESS-UNMARKED")),
    _RecordKind("free space", lambda node: "disks" in node.snapshot.host, ("DISK-FULL",)),
    _RecordKind("installed packages, settings and files", lambda node: "stack" in node.snapshot.host,
          ("ENGINE-UNLISTED", "STACK-ABSENT", "STACK-DIFFERS", "STACK-PATCHES", "TUNED-CONFIGS",
           "MODEL-ROOT-REMOTE", "NCCL-FILES", "NCCL-SETTINGS", "HOST-SETTING")),
    _RecordKind("devices other than GPUs and network cards", lambda node: bool(node.snapshot.files), (
        "GPU-OTHER-MAKER",)),
    _RecordKind("what the processor says of itself", _any_path("/proc/cpuinfo"), ("ATS-OFF", "PCIE-TREE-HIDDEN")),
    _RecordKind("nvidia-fabricmanager's log", lambda _: False, ("FABRIC-MANAGER",)),
    _RecordKind(_OTHERS, lambda _: False, ("NODE-DIFFERS", "RDMA-NAMES-DIFFER")),
    _RecordKind("trials between nodes", lambda _: False, ("PORT-BLOCKED", "RAILS-ISOLATED")),
)  # fmt: skip


def _untold(node: Node, missing: Sequence[_RecordKind]) -> Iterator[Finding]:
    """All that a pasted text leaves open, in one finding."""
    areas = dict.fromkeys(lacking.area for lacking in node.topology.unread)
    judged = {rule.id for rule in all_rules() if rule.of_text(node) is not None}
    blind = {rule.id for rule in all_rules() if areas.keys() & {*rule.needs}}
    ids = sorted(blind.union(*(kind.rules for kind in missing)) - judged)
    if ids:
        title = f"of {len(all_rules())} rules could not run on what was pasted"
        yield _blind(node, ids, title, *(f"cut off: {words}" for words in lacking_of(node.snapshot)), effect="")


def _unread(node: Node) -> Finding:
    lacking = node.topology.unread
    areas = dict.fromkeys(unread.area for unread in lacking)
    ids = [rule.id for rule in all_rules() if not areas.keys().isdisjoint(rule.needs)]
    title = f"rules can't judge this node: {' and '.join(area.value for area in areas)} could not be read"
    return _blind(node, ids, title, *map(str, lacking[:MOST_PATHS]))
