"""A PCIe link that runs below what both its ends can do."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import Link
from orchestrator.rules.cluster import Cluster, above
from orchestrator.rules.registry import Rule
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="PCIE-LINK-REDUCED",
    title="a PCIe link runs narrower or slower than it can",
    explain=(
        "Width is judged on every GPU, RDMA card and switch uplink. Speed is judged on cards and switches only: an "
        "idle L40S drops to generation 1 to save power and comes back under load."
    ),
    reads=(
        "/sys/bus/pci/devices/*/current_link_width",
        "…/max_link_width",
        "…/current_link_speed",
        "…/max_link_speed",
    ),
    source="NCCL src/graph/xml.cc ncclTopoGetXmlFromSys (min of device and port above)",
    weight=28,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding a link."""
    for name, topology, _ in cluster.nodes:
        devices = {device.key: device for device in topology.pci}
        watched: list[tuple[str, str, bool]] = [
            *((gpu.key, f"GPU {gpu.index}", False) for gpu in topology.gpus),
            *((port.key, f"RDMA card {port.device}", True) for port in topology.rdma),
            *((switch.key, "switch uplink", True) for switch in topology.switches),
        ]
        for key, what, judge_speed in watched:
            device = devices.get(key)
            if device is None:
                continue
            bridge = above(device, topology)
            best = _best(device.link_max, bridge.link_max if bridge else Link())
            narrow = 0 < device.link.width < best.width
            slow = judge_speed and 0 < device.link.speed_gts < best.speed_gts
            if narrow or slow:
                yield _finding(name, what, device.address, device.link, best, device.slot)


def _best(device: Link, bridge: Link) -> Link:
    return Link(
        speed_gts=_least(device.speed_gts, bridge.speed_gts),
        width=int(_least(device.width, bridge.width)),
    )


def _least(one: float, other: float) -> float:
    return min(one, other) if one and other else one or other


def _finding(name: str, what: str, address: str, link: Link, best: Link, slot: str) -> Finding:
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW,
        node=name,
        devices=(address,),
        title=f"{what} at {address} runs at {link.speed_gts:g} GT/s x{link.width}, both ends can "
        f"{best.speed_gts:g} GT/s x{best.width}",
        evidence=(
            f"/sys/bus/pci/devices/{address}/current_link_width = {link.width}, could be {best.width}",
            f"/sys/bus/pci/devices/{address}/current_link_speed = {link.speed_gts:g} GT/s, could be {best.speed_gts:g}",
        ),
        effect=price(Traffic.NARROW_LINK),
        fix=f"reseat the card{f' in slot {slot}' if slot else ''} and its riser; check bifurcation in the BIOS",
    )
