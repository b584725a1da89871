"""Which network carries a checkpoint from node to node: the fastest that all of them share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.model.errors import InputError
from orchestrator.model.topology import Topology
from orchestrator.topology.network import SharedWay, shared_networks


@dataclass(frozen=True, slots=True)
class DataNetwork:
    """addresses: each node's in it. reason: why this one, with interface and speed; for people"""

    addresses: Mapping[str, str]
    reason: str


def data_network(topologies: Mapping[str, Topology], interface: str = "") -> DataNetwork:
    """One network for all nodes; RDMA rails count too, since nothing but their speed matters here.

    interface: the operator's word: one that leads to the network to use
    Raises InputError where there is none.
    """
    found = shared_networks(topologies)
    if interface:
        found = tuple(ways for ways in found if any(way.interface == interface for way in ways.values()))
    if not found:
        wanted = f"no network on {interface}" if interface else "no IPv4 network"
        what = f"{wanted} is shared by {', '.join(topologies)}"
        raise InputError(what, where="network", fix="list every node's interfaces with `l40s-deploy discover`")
    best = min(found, key=_rank)
    slowest = min(way.speed_mbps for way in best.values())
    names = sorted({way.interface for way in best.values()})
    speed = f"{slowest / 1000:g} Gbit/s" if slowest else "speed unread"
    chosen = "--interface" if interface else f"the fastest of {len(found)} shared networks" if len(found) > 1 else ""
    reason = f"{', '.join(names)} ({speed}{', ' * bool(chosen)}{chosen})"
    return DataNetwork({name: way.address for name, way in best.items()}, reason)


def _rank(ways: Mapping[str, SharedWay]) -> tuple[int, int, str]:
    """The fastest first; of equals one that the engine's rails do not use."""
    return (
        -min(way.speed_mbps for way in ways.values()),
        sum(way.is_rail for way in ways.values()),
        min(way.interface for way in ways.values()),
    )
