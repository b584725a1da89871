"""An RDMA card that sits on a root port while the GPUs it should serve sit behind a switch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RAILS, Area, RdmaPort, Switch
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.pci import card
from orchestrator.topology.rdma import ports_by_card
from orchestrator.topology.slots import empty_slots
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="NIC-NOT-UNDER-SWITCH",
    title="an RDMA card is not behind the GPUs' PCIe switch",
    explain=(
        "A card behind the GPUs' own switch reaches them without the CPU (PIX). On a root port the path is PHB: NCCL"
        " does not use GPUDirect for it, and no longer carries traffic between the halves of the node over the cards."
    ),
    reads=("/sys/class/infiniband/*/device (real path)", "/sys/bus/pci/devices/*", "/sys/bus/pci/slots/*/address"),
    source="NCCL src/graph/paths.cc ncclTopoCheckNet, ncclTopoCheckGdr; the articles' first fault",
    weight=10,
    needs=(*RAILS, Area.NUMA),
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding a card, naming the slot it is in and the switch that has none; unknown where a card may be either
    misplaced or the main card."""
    for node in cluster.nodes:
        for ports in ports_by_card(node.roles.away).values():
            yield _finding(node, ports)
        if node.roles.unclear:
            yield _unknown(node, ports_by_card(node.roles.unclear))


def _finding(node: Node, ports: Sequence[RdmaPort]) -> Finding:
    place = card(ports[0].address)
    devices = tuple(port.device for port in ports)
    slot = node.devices[ports[0].key].slot
    lonely = node.roles.lonely
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW,
        node=node.name,
        devices=(*devices, place),
        title=f"RDMA card {place} ({', '.join(devices)}){f' in slot {slot}' if slot else ''} is on a root port, not"
        " behind a GPU switch",
        evidence=(
            f"real path of {ports[0].device} = {ports[0].key}",
            f"slot of {place} = {slot or 'not named by the firmware'}",
            *(f"switch {switch.address} (NUMA {switch.numa_node}) has GPUs and no RDMA card" for switch in lonely),
        ),
        effect=_without_a_card(node) + price(Traffic.CARD_ON_ROOT_PORT),
        fix=f"power off, move the card from {f'slot {slot}' if slot else f'its place at {place}'} to "
        + _target(node, lonely),
    )


def _without_a_card(node: Node) -> str:
    keys = {switch.key for switch in node.roles.lonely}
    count = sum(not keys.isdisjoint(node.places.above(gpu.key)) for gpu in node.topology.gpus)
    return f"{count} of {len(node.topology.gpus)} GPUs have no nearby card; " if count else ""


def _unknown(node: Node, cards: Mapping[str, Sequence[RdmaPort]]) -> Finding:
    names = [f"{card(ports[0].address)} ({', '.join(port.device for port in ports)})" for ports in cards.values()]
    return Finding(
        id=RULE.id,
        severity=Severity.UNKNOWN,
        node=node.name,
        devices=tuple(port.device for ports in cards.values() for port in ports),
        title=f"{' or '.join(names)} is on a root port; whether it serves the GPUs or TCP was not recorded",
        evidence=tuple(f"switch {switch.address} has GPUs and no RDMA card" for switch in node.roles.lonely),
        effect="if it serves the GPUs: " + price(Traffic.CARD_ON_ROOT_PORT),
        fix="run `l40s-deploy doctor` on the node itself, which shows the card that carries TCP",
    )


def _target(node: Node, lonely: Sequence[Switch]) -> str:
    if not lonely:
        return "a slot behind a GPU switch"
    empty = empty_slots(node.topology, node.snapshot)
    return " or ".join(_slot_words(switch, empty.get(switch.key, ())) for switch in lonely)


def _slot_words(switch: Switch, empty: Sequence[str]) -> str:
    where = f"switch {switch.address} (NUMA {switch.numa_node})"
    return f"slot {' or '.join(empty)}, empty, behind {where}" if empty else f"a slot behind {where}"
