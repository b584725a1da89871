"""A switch with GPUs behind it and no RDMA card, where no misplaced card explains it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RAILS, Area, Switch
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.names import part_name
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="NIC-MISSING",
    title="a switch with GPUs has no RDMA card",
    explain=(
        "Each switch with GPUs needs its own RDMA card. Reported where another switch of the node has one and no card"
        " is elsewhere: the card is not plugged in, dead, or without its driver."
    ),
    reads=("/sys/class/infiniband/*/device (real path)", "/sys/bus/pci/devices/*/{vendor,device,driver}"),
    source="NCCL src/graph/topo.cc ncclTopoGetLocal; the articles' cluster (one card behind each switch)",
    weight=15,
    needs=(*RAILS, Area.NUMA),
)
_NETWORK_CLASS = 0x02


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding per node."""
    for node in cluster.nodes:
        lonely = node.roles.lonely
        keys = {switch.key for switch in lonely}
        served = [switch for switch in node.gpu_switches if keys.isdisjoint(node.with_above(switch))]
        if lonely and served and not node.roles.away:
            yield _finding(node, lonely)


def _finding(node: Node, lonely: Sequence[Switch]) -> Finding:
    names = ", ".join(f"{switch.address} (NUMA {switch.numa_node})" for switch in lonely)
    silent = [
        device
        for device in node.topology.pci
        if device.class_code >> 16 == _NETWORK_CLASS
        and any(switch.key in node.places.above(device.key) for switch in lonely)
    ]
    found = tuple(
        f"{device.address}: {part_name(device.vendor, device.device)}, driver = {device.driver or 'none'}, "
        "no RDMA device"
        for device in silent
    )
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW,
        node=node.name,
        devices=tuple(device.address for device in silent) or tuple(switch.address for switch in lonely),
        title=f"no RDMA card behind switch {names}" + (", only a card without an RDMA device" if silent else ""),
        evidence=found or tuple(f"switch {switch.address}: no network card behind it" for switch in lonely),
        effect=price(Traffic.CARD_ON_ROOT_PORT),
        fix="load the card's driver with `modprobe mlx5_ib`, then check `dmesg | grep mlx5`"
        if silent
        else "check that the card is seated and has power: `lspci | grep -i mellanox`",
    )
