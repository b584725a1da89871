"""RDMA devices whose names stand for other places than on the other nodes."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RAILS
from orchestrator.rules.support.cluster import Cluster, Slot, odd_in_place
from orchestrator.rules.support.registry import Rule

RULE = Rule(
    id="RDMA-NAMES-DIFFER",
    title="RDMA devices have a different name order than on the peers",
    explain=(
        "Before 2.29.7, NCCL numbers cards in the verbs library's order, which follows their names, and pairs equal"
        " numbers between nodes. If names do not follow the slots in the same way on every node, rails cross."
    ),
    reads=("/sys/class/infiniband/*/device (real path)",),
    source="NCCL src/transport/net_ib/init.cc (NCCL_IB_DEVICE_PCI_ORDER since 2.29.7)",
    weight=36,
    needs=RAILS,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding for each odd node."""
    for group in cluster.peers:
        for node, found in odd_in_place(group, lambda _, port: port.device):
            places = [(place, own, common) for place, (_, own, common) in found.items()]
            if _same_names_elsewhere(places):
                yield _finding(node.name, places)


def _same_names_elsewhere(places: list[tuple[Slot, str, str]]) -> bool:
    """Whether names are swapped; names of a card that is elsewhere or missing are other rules' business."""
    return {device for _, device, _ in places} == {common for *_, common in places}


def _finding(name: str, places: list[tuple[Slot, str, str]]) -> Finding:
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW,
        node=name,
        devices=tuple(device for _, device, _ in places),
        title="RDMA devices have a different name order than on the other nodes: "
        + ", ".join(f"{device} where they have {common}" for _, device, common in places),
        evidence=tuple(f"{device}: {place}; on the other nodes {common}" for place, device, common in places),
        effect="NCCL before 2.29.7 pairs ports of different rails: with separate rails ibv_modify_qp fails with 110"
        " (ETIMEDOUT), otherwise traffic crosses the spine switch (not measured)",
        fix="make the names persistent with udev (rdma-core 60-rdma-persistent-naming.rules: NAME_PCI), then reboot",
    )
