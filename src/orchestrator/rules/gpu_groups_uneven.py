"""GPUs spread unevenly: one on a root port, or the switches with different numbers of them."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import Area
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.slotted_switches import emulated_switches, homes
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="GPU-GROUPS-UNEVEN",
    title="the GPUs are not spread evenly over the PCIe switches",
    explain=(
        "Each switch should have the same number of GPUs: NCCL's rings run through a switch's GPUs and leave by its"
        " RDMA card. A GPU on a root port, or a fifth one behind a switch, has no nearby card of its own."
    ),
    reads=("/sys/bus/pci/devices/* (real paths)", "/sys/bus/pci/slots/*/address"),
    source="the articles' cluster (4 GPUs and one card behind each switch); NCCL src/graph/search.cc",
    weight=13,
    needs=(Area.PCI,),
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding per node; lost GPUs are another rule's, and nobody moves a card in an emulated tree."""
    for node in cluster.nodes:
        placed = [gpu for gpu in node.topology.gpus if gpu.key in node.devices]
        home = homes(node.topology, node.places)
        counts = {switch.key: sum(home[gpu.key] == switch.key for gpu in placed) for switch in node.gpu_switches}
        if len(placed) < node.spec.gpus or not counts or counts.keys() & emulated_switches(node.topology):
            continue
        away = [gpu.address for gpu in placed if not home[gpu.key]]
        if away or len(set(counts.values())) > 1:
            yield _finding(node, counts, away)


def _finding(node: Node, counts: dict[str, int], away: list[str]) -> Finding:
    addresses = {switch.key: switch.address for switch in node.gpu_switches}
    crowded = [addresses[key] for key, count in counts.items() if count == max(counts.values())]
    groups = " + ".join(map(str, counts.values())) + " behind the switches"
    groups += f", {len(away)} on {'a root port' if len(away) == 1 else 'root ports'}" if away else ""
    slots = {device.address: device.slot for device in node.topology.pci if device.slot}
    from_slots = ", ".join(f"slot {slots[address]}" for address in away if address in slots)
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW,
        node=node.name,
        devices=tuple(away or crowded),
        title=f"the GPUs are spread unevenly: {groups}",
        evidence=(
            *(f"switch {addresses[key]}: {count} GPUs" for key, count in counts.items()),
            *(f"GPU {address}: on a root port" for address in away),
        ),
        effect="GPUs without a nearby card communicate through the CPU; " + price(Traffic.CARD_ON_ROOT_PORT),
        fix=f"move the GPU {f'from {from_slots} ' if from_slots else ''}to a slot behind the switch with the fewest",
    )
