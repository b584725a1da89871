"""A PCIe link that runs below what both its ends can do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RAILS, Area, PciDevice, PcieLink
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.pci import both_ends
from orchestrator.topology.rdma import ports_by_card
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="PCIE-LINK-REDUCED",
    title="a PCIe link is narrower or slower than it could be",
    explain=(
        "The width of every GPU, RDMA card and switch uplink is compared with the device's maximum: a slot with fewer"
        " lanes than the card is as bad as a damaged contact. The speed is compared for cards and switches only, with"
        " the slower end: an idle L40S drops to generation 1 to save power, and returns under load."
    ),
    reads=("/sys/bus/pci/devices/*/{current,max}_link_{speed,width}",),
    source="NCCL src/graph/xml.cc ncclTopoGetXmlFromSys (min of device and port above); nvidia-smi -q of an idle L40S",
    weight=28,
    needs=(*RAILS, Area.LINKS),
)


@dataclass(frozen=True, slots=True)
class _Watched:
    key: str
    words: str
    judge_speed: bool


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding a link; both ports of a card share one."""
    for node in cluster.nodes:
        for watched in _watched(node):
            device = node.devices.get(watched.key)
            if device is None:
                continue
            bridge = node.above(device.key)
            speed_gts = both_ends(device.link_max, bridge.link_max if bridge else PcieLink()).speed_gts
            if bridge and not bridge.link_max.speed_gts:
                speed_gts = 0.0  # the slower end counts, and nobody read it
            best = PcieLink(speed_gts=speed_gts, width=device.link_max.width)
            narrow = 0 < device.link.width < best.width
            slow = watched.judge_speed and 0 < device.link.speed_gts < best.speed_gts
            if narrow or slow:
                yield _finding(node, watched, device, best, bridge, narrow=narrow, slow=slow)


def _watched(node: Node) -> Iterator[_Watched]:
    yield from (_Watched(gpu.key, f"GPU {gpu.index}", judge_speed=False) for gpu in node.topology.gpus)
    for ports in ports_by_card(node.rail_ports).values():
        yield _Watched(ports[0].key, f"RDMA card {', '.join(port.device for port in ports)}", judge_speed=True)
    needed = {key for gpu in node.topology.gpus for key in node.places.above(gpu.key)}
    yield from (
        _Watched(switch.key, "the switch's uplink", judge_speed=True)
        for switch in node.topology.switches
        if switch.key in needed
    )


def _finding(
    node: Node,
    watched: _Watched,
    device: PciDevice,
    best: PcieLink,
    bridge: PciDevice | None,
    *,
    narrow: bool,
    slow: bool,
) -> Finding:
    folder = f"/sys/bus/pci/devices/{device.address}"
    evidence = []
    if narrow:
        evidence.append(f"{folder}/current_link_width = {device.link.width}, max_link_width = {best.width}")
    if slow:
        evidence.append(
            f"{folder}/current_link_speed = {device.link.speed_gts:g} GT/s, both ends support {best.speed_gts:g}"
        )
    slot_is_narrow = bridge is not None and 0 < bridge.link_max.width < best.width
    if narrow and slot_is_narrow and bridge:
        evidence.append(f"/sys/bus/pci/devices/{bridge.address}/max_link_width = {bridge.link_max.width} (the slot)")
    now = f"x{device.link.width}" if not slow else f"{device.link.speed_gts:g} GT/s x{device.link.width}"
    could = f"x{best.width}" if not slow else f"{best.speed_gts:g} GT/s x{best.width}"
    slot = f" in slot {device.slot}" if device.slot else ""
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW,
        node=node.name,
        devices=(device.address,),
        title=f"{watched.words} at {device.address} runs at {now}, but supports {could}",
        evidence=tuple(evidence),
        effect=price(Traffic.NARROW_LINK),
        fix=f"move the card{slot} to a slot with {best.width} lanes, or change the slot's bifurcation in the BIOS"
        if narrow and slot_is_narrow
        else f"reseat the card{slot} and its riser, and check the contacts; check bifurcation and link speed in the"
        " BIOS",
    )
