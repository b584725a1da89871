"""An RDMA card that sits on a root port while the GPUs it should serve sit behind a switch."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RdmaPort, Topology
from orchestrator.rules.cluster import Cluster, card, gpu_port
from orchestrator.rules.registry import Rule
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
    for name, topology, _ in cluster.nodes:
        if not any(gpu.switch for gpu in topology.gpus):
            continue
        misplaced: dict[str, list[RdmaPort]] = {}
        for port in topology.rdma:
            if gpu_port(port, topology) and not port.switch:
                misplaced.setdefault(card(port.address), []).append(port)
        for place, ports in misplaced.items():
            yield _finding(name, topology, place, ports)


def _finding(name: str, topology: Topology, place: str, ports: list[RdmaPort]) -> Finding:
    devices = tuple(port.device for port in ports)
    slot = next((device.slot for device in topology.pci if card(device.address) == place and device.slot), "")
    lonely = _switches_without_card(topology)
    target = _free_slot_words(topology, lonely)
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW,
        node=name,
        devices=(*devices, place),
        title=f"RDMA card {place} ({', '.join(devices)}) sits on a root port, not behind a GPU switch",
        evidence=(
            f"real path of {ports[0].device} = {ports[0].key}",
            f"slot = {slot or 'not named by the firmware'}",
            *(f"switch {address} has GPUs and no RDMA card" for address in lonely),
        ),
        effect=price(Traffic.CARD_ON_ROOT_PORT),
        fix=f"power off, move the card from {f'slot {slot}' if slot else 'its slot'} to {target}",
    )


def _switches_without_card(topology: Topology) -> list[str]:
    with_card = {port.switch for port in topology.rdma}
    with_gpus = {gpu.switch for gpu in topology.gpus if gpu.switch}
    return [switch.address for switch in topology.switches if switch.key in with_gpus - with_card]


def _free_slot_words(topology: Topology, lonely: list[str]) -> str:
    if not lonely:
        return "a slot behind a GPU switch"
    numa = {switch.address: switch.numa_node for switch in topology.switches}
    return " or ".join(f"a slot behind switch {address} (NUMA {numa[address]})" for address in lonely)
