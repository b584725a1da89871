"""An RDMA card that sits on a root port while the GPUs it should serve sit behind a switch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RdmaPort, Switch
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.pci import card
from orchestrator.topology.slots import empty_slots
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="NIC-NOT-UNDER-SWITCH",
    title="an RDMA card is not behind the GPUs' PCIe switch",
    explain=(
        "A card behind the GPUs' own switch reaches them without the CPU (PIX). On a root port it is PHB: NCCL uses "
        "no GPUDirect for it, and stops carrying traffic between the halves of the node over the cards."
    ),
    reads=("/sys/class/infiniband/*/device (real path)", "/sys/bus/pci/devices/*", "/sys/bus/pci/slots/*/address"),
    source="NCCL src/graph/paths.cc ncclTopoCheckNet, ncclTopoCheckGdr; the articles' first fault",
    weight=10,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding a card, naming the slot it is in and the switch that has none."""
    for node in cluster.nodes:
        if not node.gpu_switches:
            continue
        misplaced: dict[str, list[RdmaPort]] = {}
        for port in node.rail_ports:
            if port.key in node.devices and not node.near_gpus(port):
                misplaced.setdefault(card(port.key), []).append(port)
        for ports in misplaced.values():
            yield _finding(node, ports)


def lonely_switches(node: Node) -> list[Switch]:
    """Switches with GPUs and no RDMA card behind them."""
    served = {switch for port in node.rail_ports for switch in node.places.above(port.key)}
    return [switch for switch in node.gpu_switches if served.isdisjoint(node.with_above(switch))]


def _finding(node: Node, ports: Sequence[RdmaPort]) -> Finding:
    place = card(ports[0].address)
    devices = tuple(port.device for port in ports)
    slot = node.devices[ports[0].key].slot
    lonely = lonely_switches(node)
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW,
        node=node.name,
        devices=(*devices, place),
        title=f"RDMA card {place} ({', '.join(devices)}){f' in slot {slot}' if slot else ''} sits on a root port, "
        "not behind a GPU switch",
        evidence=(
            f"real path of {ports[0].device} = {ports[0].key}",
            f"slot of {place} = {slot or 'not named by the firmware'}",
            *(f"switch {switch.address} (NUMA {switch.numa_node}) has GPUs and no RDMA card" for switch in lonely),
        ),
        effect="4 of 8 GPUs have no card near them; " + price(Traffic.CARD_ON_ROOT_PORT)
        if len(lonely) * 2 == len(node.gpu_switches) and len(node.topology.gpus) == 8
        else price(Traffic.CARD_ON_ROOT_PORT),
        fix=f"power off, move the card from {f'slot {slot}' if slot else f'its place at {place}'} to "
        + _target(node, lonely),
    )


def _target(node: Node, lonely: Sequence[Switch]) -> str:
    if not lonely:
        return "a slot behind a GPU switch"
    empty = empty_slots(node.topology, node.snapshot)
    return " or ".join(_slot_words(switch, empty.get(switch.key, ())) for switch in lonely)


def _slot_words(switch: Switch, empty: Sequence[str]) -> str:
    where = f"switch {switch.address} (NUMA {switch.numa_node})"
    return f"slot {' or '.join(empty)}, empty, behind {where}" if empty else f"a slot behind {where}"
