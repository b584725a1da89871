"""Which NIC does what: the TCP side that all nodes share, the RDMA rails, and each port's GID index.

Rules: NCCL src/transport/net_ib (ncclIbGetGidIndex), reference manual of NCCL_SOCKET_IFNAME and NCCL_IB_HCA,
Mellanox show_gids.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from orchestrator.model.topology import Gid, Interface, RdmaPort, Topology
from orchestrator.topology.rdma import natural
from orchestrator.topology.switches import SwitchPlaces

ROCE_V2 = "RoCE v2"
_BOND = "bond"
_NOT_BETWEEN_NODES = ("lo", "docker", "virbr", "br-", "cni", "veth", "flannel", "cali", "tailscale", "podman")
"""Interfaces whose networks lead to containers, guests or overlays, whatever their addresses."""


@dataclass(frozen=True, slots=True)
class TcpChoice:
    """A node's TCP side: interface and IPv4 address, and why this one."""

    interface: str
    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class GidChoice:
    """A port's GID index for RoCE v2 over IPv4; None where there is none or none is needed, with the reason."""

    index: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Rail:
    """An RDMA port that can carry a gang's traffic now.

    address: IPv4 of its GID, '' where it has none (InfiniBand) or none was read
    near:    a switch is above both it and a GPU
    """

    port: RdmaPort
    gid: GidChoice
    address: str
    near: bool


def tcp_interface(
    topologies: Mapping[str, Topology], asked: Mapping[str, Collection[str]] | None = None
) -> Mapping[str, TcpChoice]:
    """Each node's interface for rendezvous and services; empty where the nodes share no IPv4 network.

    One network for all nodes. Networks of RDMA rails come last, those of bonds first, then the fastest; an address
    that two nodes have (a container bridge's) does not connect them. asked: RDMA devices that the inventory names for
    the GPUs' traffic, by node.
    """
    shared = _shared(topologies, asked or {})
    if not shared:
        return {}
    best = min(shared, key=lambda network: _rank(network, list(shared[network].values())))
    return {name: _choice(best, way, len(shared) - 1, len(topologies)) for name, way in shared[best].items()}


@dataclass(frozen=True, slots=True)
class SharedWay:
    """One node's end of a network. near: behind a switch of the GPUs"""

    interface: Interface
    address: str
    is_rail: bool
    near: bool


def shared_networks(topologies: Mapping[str, Topology]) -> tuple[Mapping[str, SharedWay], ...]:
    """Every IPv4 network that all of these nodes have an address in, each with every node's end of it."""
    return tuple(ends for _, ends in sorted(_shared(topologies, {}).items(), key=lambda entry: str(entry[0])))


def _shared(
    topologies: Mapping[str, Topology], asked: Mapping[str, Collection[str]]
) -> dict[ipaddress.IPv4Network, dict[str, SharedWay]]:
    """Each node's end of every network that all have one in; not by an address that two nodes have."""
    ways = {name: _ways(topology, asked.get(name, ())) for name, topology in topologies.items()}
    nodes = Counter(address for mine in ways.values() for address in {way.address for way in mine.values()})
    networks = set.intersection(*map(set, ways.values())) if ways else set()
    ends = {network: {name: mine[network] for name, mine in ways.items()} for network in networks}
    return {network: own for network, own in ends.items() if all(nodes[way.address] == 1 for way in own.values())}


def _ways(topology: Topology, asked: Collection[str]) -> dict[ipaddress.IPv4Network, SharedWay]:
    near, rails = _interfaces_of_rails(topology, asked)
    ways: dict[ipaddress.IPv4Network, SharedWay] = {}
    for interface in topology.interfaces:
        if interface.bond or not interface.up or interface.name.startswith(_NOT_BETWEEN_NODES):
            continue
        for text in interface.ipv4:
            address = ipaddress.IPv4Interface(text)
            if not address.is_loopback and not address.is_link_local:
                way = SharedWay(interface, str(address.ip), interface.name in rails, interface.name in near)
                ways.setdefault(address.network, way)
    return ways


def _interfaces_of_rails(topology: Topology, asked: Collection[str]) -> tuple[set[str], set[str]]:
    """(behind a switch of the GPUs, for the GPUs' traffic): interfaces of RDMA ports."""
    places = GpuPlaces(topology)
    meant = [port for port in topology.rdma if port.device in asked] or may_be_rails(topology, virtual=True)
    near = {carrier(port, topology) for port in topology.rdma if places.near(port)}
    far_bonds = {carrier(port, topology) for port in meant if is_bonded(port, topology)} - near if near else set()
    return near, {carrier(port, topology) for port in meant} - far_bonds


def _rank(network: ipaddress.IPv4Network, ways: Sequence[SharedWay]) -> tuple[int, int, int, int, int, int, str]:
    return (
        sum(way.is_rail for way in ways),
        sum(not way.interface.slaves for way in ways),
        sum(way.near for way in ways),
        sum(not way.interface.physical and not way.interface.slaves for way in ways),
        -min(way.interface.speed_mbps for way in ways),
        -network.prefixlen,
        str(network),
    )


def _choice(network: ipaddress.IPv4Network, way: SharedWay, others: int, nodes: int) -> TcpChoice:
    if way.is_rail:
        kind = "an RDMA rail, the only network there is"
    else:
        kind = "a bond" if way.interface.slaves else "no rail"
    place = f"in {network}, which all {nodes} nodes share" if nodes > 1 else f"in {network}"
    among = f"; {others} other shared networks" if others else ""
    return TcpChoice(way.interface.name, way.address, f"{way.interface.name} is {kind} {place}{among}")


def rails(topology: Topology, tcp: TcpChoice | None = None) -> tuple[Rail, ...]:
    """The RDMA ports for the gang's traffic, in natural order of names.

    Usable is a port that is ACTIVE, not the TCP side, no virtual function, and has a RoCE v2 GID over IPv4 (or is
    InfiniBand, or nobody recorded its GIDs); a bond as far as `may_be_rails` says. Where some of them lie under a
    GPU's switch, these are the rails; else all usable ones.
    tcp: the node's TCP side; None takes what this node alone would choose
    """
    side = tcp or tcp_interface({topology.node: topology}).get(topology.node)
    usable = usable_rails(topology, side.interface if side else "")
    return tuple(rail for rail in usable if rail.near) or usable


def usable_rails(topology: Topology, tcp: str) -> tuple[Rail, ...]:
    """Every usable RDMA port, far ones too, in natural order of names. tcp: the interface of the TCP side."""
    places = GpuPlaces(topology)
    good = (port for port in may_be_rails(topology, tcp) if not port_fault(port, topology))
    ordered = sorted(good, key=lambda port: (natural(port.device), port.port))
    return tuple(_rail(port, topology, places.near(port)) for port in ordered)


def _rail(port: RdmaPort, topology: Topology, near: bool) -> Rail:
    gid = gid_index(port, topology)
    address = next((entry.ipv4 or "" for entry in port.gids if entry.index == gid.index), "")
    return Rail(port, gid, address, near)


def own_interface(port: RdmaPort, topology: Topology) -> str:
    """The bond that a port's interface is part of, else that interface; '' where unknown."""
    interface = topology.interface(port.netdev) if port.netdev else None
    return interface.bond if interface and interface.bond else port.netdev


def carrier(port: RdmaPort, topology: Topology) -> str:
    """The interface that has a port's addresses: its own, else a VLAN on it, which its GIDs name; '' where unknown."""
    own = own_interface(port, topology)
    names = (own, *(gid.netdev for gid in port.gids if gid.ipv4))
    return next((name for name in names if (interface := topology.interface(name)) and interface.ipv4), own)


def is_bonded(port: RdmaPort, topology: Topology) -> bool:
    """Whether a port's interface is a bond or part of one."""
    interface = topology.interface(own_interface(port, topology)) if port.netdev else None
    if interface is None:
        return _BOND in port.device  # mlx5 names the device that it makes of a bonded pair mlx5_bond_N
    return bool(interface.slaves) or interface.name != port.netdev


class PortFault(Enum):
    """Why an RDMA port can't carry traffic, in the words of every screen."""

    NO_LINK = "no link"
    NO_ADDRESS = "no address"
    ROCE_V1 = "RoCE v1 only"
    NO_GID = "no RoCE v2 GID"
    UNREAD = "state unread"
    """It is not known whether it can."""


def port_fault(port: RdmaPort, topology: Topology) -> PortFault | None:
    """The one judgement of a port. None for one that works, for one whose link layer asks for no GID, and where nobody
    recorded its GIDs."""
    if port.state and not port.active:
        return PortFault.NO_LINK
    if port.link_layer == "InfiniBand" or not port.gids_recorded or gid_index(port, topology).index is not None:
        return None if port.state else PortFault.UNREAD
    if any(gid.ipv4 and "v1" in gid.type for gid in port.gids):
        return PortFault.ROCE_V1
    interface = topology.interface(port.netdev)
    return PortFault.NO_GID if interface and interface.ipv4 else PortFault.NO_ADDRESS


class GpuPlaces:
    """Which RDMA ports have a switch in common with a GPU."""

    def __init__(self, topology: Topology) -> None:
        self._places = SwitchPlaces(topology.switches)
        self._gpus = {switch for gpu in topology.gpus for switch in self._places.above(gpu.key)}

    def switch(self, port: RdmaPort) -> str:
        """The nearest switch above both the port and a GPU, '' for none."""
        return next((switch for switch in self._places.above(port.key) if switch in self._gpus), "")

    def near(self, port: RdmaPort) -> bool:
        return bool(self.switch(port))


def may_be_rails(topology: Topology, tcp: str = "", *, virtual: bool = False) -> tuple[RdmaPort, ...]:
    """The ports that are not the TCP side's, whatever their state. Where nobody knows that side, the place of a bond
    tells what it is for: behind the GPUs' switches it is a rail, unless another port shares its switch; away from them
    it is the main card, unless all ports near GPUs, or all there are, are bonds too.

    tcp: its interface, '' where not known; virtual: SR-IOV functions too
    """
    own = tuple(port for port in topology.rdma if virtual or not port.virtual)
    if tcp:
        return tuple(port for port in own if carrier(port, topology) != tcp)
    bonds = {port for port in own if is_bonded(port, topology)}
    main = bonds - _rails_by_place(own, bonds, topology)
    return tuple(port for port in own if port not in main)


def _rails_by_place(own: Sequence[RdmaPort], bonds: Set[RdmaPort], topology: Topology) -> set[RdmaPort]:
    places = GpuPlaces(topology)
    near = {port: switch for port in own if (switch := places.switch(port))}
    shared = {switch for port, switch in near.items() if port not in bonds and not port.virtual}
    far_too = bonds >= {*(near or own)} and (bool(near) or _have_several_carriers(bonds, topology))
    return {port for port in bonds if (near[port] not in shared if port in near else far_too)}


def _have_several_carriers(ports: Set[RdmaPort], topology: Topology) -> bool:
    return len({carrier(port, topology) or port.device for port in ports}) > 1


def _network_of(address: str | None, netdev: str, topology: Topology) -> str:
    interface = topology.interface(netdev)
    own = (text for text in (interface.ipv4 if interface else ()) if text.partition("/")[0] == address)
    return next((_network(text) for text in own), "")


def _network(text: str) -> str:
    return str(ipaddress.IPv4Interface(text).network)


def common_gid_index(
    ports: Sequence[RdmaPort], topology: Topology, met: Mapping[str, int] = MappingProxyType({})
) -> GidChoice:
    """The lowest index that serves all of these ports, as NCCL_IB_GID_INDEX wants it."""
    roce = [port for port in ports if port.link_layer != "InfiniBand"]
    if not roce:
        return GidChoice(None, "InfiniBand ports need no GID index")
    tables = [{gid.index for gid in _fit(port, topology, met)} for port in roce]
    common = set.intersection(*tables)
    if not common:
        each = ", ".join(f"{port.name}: {sorted(table)}" for port, table in zip(roce, tables, strict=True))
        return GidChoice(None, f"no single GID index is RoCE v2 over IPv4 on all chosen ports ({each})")
    index = min(common)
    return GidChoice(index, f"GID {index} is RoCE v2 over IPv4 on all {len(roce)} chosen ports of this node")


def address_range(ports: Sequence[RdmaPort], topology: Topology, met: Mapping[str, int] = MappingProxyType({})) -> str:
    """The smallest IPv4 network that holds the wanted address of every one of these ports and no other RoCE v2
    address of theirs, as NCCL_IB_ADDR_RANGE wants it; '' where there is none."""
    wanted, unwanted = set[int](), set[int]()
    for port in ports:
        chosen = gid_index(port, topology, met).index
        mapped = {gid.index: int(ipaddress.IPv4Address(gid.ipv4)) for gid in _version_2(port) if gid.ipv4}
        if chosen not in mapped:
            return ""
        wanted.add(mapped[chosen])
        unwanted |= set(mapped.values()) - {mapped[chosen]}
    if not wanted:
        return ""
    length = 32 - (min(wanted) ^ max(wanted)).bit_length()
    network = ipaddress.IPv4Network((min(wanted), length), strict=False)
    return str(network) if length and not any(ipaddress.IPv4Address(other) in network for other in unwanted) else ""


def _version_2(port: RdmaPort) -> list[Gid]:
    """Its GIDs for RoCE v2 over IPv4."""
    return [gid for gid in port.gids if gid.ipv4 and gid.type == ROCE_V2]


def networks_met(topologies: Iterable[Topology]) -> Mapping[str, int]:
    """How many of these nodes have an address in each IPv4 network."""
    networks_of = (
        {_network(text) for interface in topology.interfaces for text in interface.ipv4} for topology in topologies
    )
    return Counter(network for networks in networks_of for network in networks)


def _fit(port: RdmaPort, topology: Topology, met: Mapping[str, int]) -> list[Gid]:
    """Its GIDs that can be used, as far as they are in the network that most nodes are in."""
    usable = [gid for gid in _version_2(port) if not _why_not(gid, port, topology)]
    if not met or len(usable) < 2:
        return usable
    nodes = [met.get(_network_of(gid.ipv4, gid.netdev or port.netdev, topology), 0) for gid in usable]
    return [gid for gid, count in zip(usable, nodes, strict=True) if count == max(nodes)]


def gid_index(port: RdmaPort, topology: Topology, met: Mapping[str, int] = MappingProxyType({})) -> GidChoice:
    """The index whose entry is RoCE v2 over IPv4, of an interface that is up and has the address: of several the one
    in the network that most nodes are in (met: networks_met), then the lowest."""
    if port.link_layer == "InfiniBand":
        return GidChoice(None, "InfiniBand ports need no GID index")
    if not port.gids_recorded:
        return GidChoice(None, "the GID table was not recorded")
    mapped = [gid for gid in port.gids if gid.ipv4]
    if not mapped:
        return GidChoice(None, f"none of {len(port.gids)} GIDs is an IPv4 address")
    version_2 = _version_2(port)
    if not version_2:
        kinds = ", ".join(sorted({gid.type or "type unread" for gid in mapped}))
        return GidChoice(None, f"the GIDs of IPv4 addresses are {kinds}, none is RoCE v2")
    if fit := _fit(port, topology, met):
        return GidChoice(
            fit[0].index, f"GID {fit[0].index} is RoCE v2, {fit[0].ipv4} on {fit[0].netdev or port.netdev}"
        )
    return GidChoice(None, "; ".join(f"GID {gid.index}: {_why_not(gid, port, topology)}" for gid in version_2))


def _why_not(gid: Gid, port: RdmaPort, topology: Topology) -> str:
    """'' where a GID can be used. What was not read is no reason against it: the kernel keeps the table."""
    name = gid.netdev or port.netdev
    interface = topology.interface(name)
    if interface is None:
        return ""
    if interface.operstate and not interface.up:
        return f"{name} is {interface.operstate}"
    master = topology.interface(interface.bond) if interface.bond else None
    known = {text.partition("/")[0] for holder in (interface, master) if holder for text in holder.ipv4}
    return f"{gid.ipv4} is not an address of {name}" if known and gid.ipv4 not in known else ""
