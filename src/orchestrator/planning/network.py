"""What of a node's network the engine should use: one interface for TCP, the RDMA ports for NCCL, a GID index.

Rules of names and indices: reference manuals of NCCL (NCCL_SOCKET_IFNAME, NCCL_IB_HCA, NCCL_IB_GID_INDEX) and
NCCL src/transport/net_ib.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.model.errors import InputError
from orchestrator.model.inventory import GangSpec, NodeSpec
from orchestrator.model.topology import Gid, Interface, RdmaPort, Topology


@dataclass(frozen=True, slots=True)
class TcpChoice:
    """The interface for rendezvous, Gloo and NCCL's bootstrap. interface is '' where no facts were read."""

    interface: str
    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class RdmaChoice:
    """RDMA ports for NCCL; none where this node has none that are usable. reason says which rule chose them.

    gid_index: one index that serves all of them, None where there is none or none is needed
    """

    ports: tuple[RdmaPort, ...]
    reason: str
    gid_index: int | None = None
    gid_reason: str = ""


def tcp_choices(gang: GangSpec, topologies: Mapping[str, Topology]) -> dict[str, TcpChoice]:
    """One choice a node. Raises InputError where the inventory pins something that the node does not have."""
    shared = _shared_networks([topologies[node.name] for node in gang.nodes if node.name in topologies])
    return {node.name: _tcp_choice(node, topologies.get(node.name), shared, len(gang.nodes)) for node in gang.nodes}


def _tcp_choice(
    node: NodeSpec, topology: Topology | None, shared: Sequence[ipaddress.IPv4Network], nodes: int
) -> TcpChoice:
    interfaces = _with_ipv4(topology) if topology else ()
    pinned = node.overrides.socket_ifname
    if pinned:
        return _pinned_interface(node, pinned, topology)
    if node.address:
        found = next((item for item in interfaces if _address_in(item, node.address)), None)
        if found:
            return TcpChoice(found.name, node.address, f"{found.name} has l40s_address {node.address}")
        if interfaces:
            raise InputError(
                f"l40s_address {node.address} is on none of this node's interfaces: " + _listing(interfaces),
                where=f"inventory: {node.name}: l40s_address",
                fix="give l40s_address one of these addresses, or leave it out",
            )
        return TcpChoice("", node.address, "l40s_address in the inventory; no interfaces were read")
    if not interfaces:
        return TcpChoice("", node.reach.host, "ansible_host; no interfaces were read and no l40s_address is given")
    candidates = [item for item in interfaces if any(_network_in(item, network) for network in shared)]
    if not candidates:
        raise InputError(
            "no interface has an IPv4 address in a network that all nodes of the gang share; it has "
            + _listing(interfaces),
            where=f"node {node.name}",
            fix="set l40s_address on every node, or l40s_socket_ifname",
        )
    rdma = {port.netdev for port in topology.rdma} if topology else set()
    chosen = min(candidates, key=lambda item: _rank(item, rdma, node.reach.host))
    network = next(network for network in shared if _network_in(chosen, network))
    address = next(text for text in _addresses(chosen) if ipaddress.IPv4Address(text) in network)
    return TcpChoice(chosen.name, address, _why(chosen, candidates, rdma, network, nodes))


def _pinned_interface(node: NodeSpec, pinned: str, topology: Topology | None) -> TcpChoice:
    reason = "override: l40s_socket_ifname in the inventory"
    if topology is None or not topology.interfaces:
        return TcpChoice(pinned, node.address or node.reach.host, reason)
    interface = topology.interface(pinned)
    if interface is None or not _addresses(interface):
        raise InputError(
            f"l40s_socket_ifname {pinned!r} is no interface with an IPv4 address here: "
            + _listing(_with_ipv4(topology)),
            where=f"inventory: {node.name}: l40s_socket_ifname",
            fix="name one of these interfaces, or leave it out",
        )
    return TcpChoice(pinned, node.address or _addresses(interface)[0], reason)


def _rank(interface: Interface, rdma: set[str], host: str) -> tuple[int, ...]:
    """Smaller is better: not an RDMA port's own interface, a bond, the way we came in, then by name."""
    return (
        interface.name in rdma,
        not interface.slaves,
        host not in _addresses(interface),
        not interface.physical and not interface.slaves,
        -interface.speed_mbps,
        *interface.name.encode(),
    )


def _why(
    chosen: Interface, candidates: Sequence[Interface], rdma: set[str], network: ipaddress.IPv4Network, nodes: int
) -> str:
    kind = "bond" if chosen.slaves else "interface"
    place = f"with an IPv4 address in {network}" + (f", which all {nodes} nodes share" if nodes > 1 else "")
    rivals = [item.name for item in candidates if item is not chosen]
    if not rivals:
        return f"{chosen.name}: the only interface {place}"
    if chosen.slaves and not any(item.slaves for item in candidates if item is not chosen):
        return f"{chosen.name}: the only bond {place}"
    if chosen.name not in rdma and all(name in rdma for name in rivals):
        return f"{chosen.name}: the only {kind} {place} that is no RDMA port's"
    return f"{chosen.name}: the first {kind} {place} (others: {', '.join(rivals)})"


def _with_ipv4(topology: Topology) -> tuple[Interface, ...]:
    """Interfaces that are up and have an address; loopback only where there is nothing else."""
    found = tuple(item for item in topology.interfaces if item.up and item.ipv4 and not item.bond)
    outward = tuple(item for item in found if item.name != "lo")
    return outward or found


def _shared_networks(topologies: Sequence[Topology]) -> tuple[ipaddress.IPv4Network, ...]:
    """IPv4 networks in which every node has an address, widest last; docker's and libvirt's bridges don't count."""
    if not topologies:
        return ()
    sets = [
        {
            ipaddress.IPv4Interface(text).network
            for item in _with_ipv4(topology)
            if not item.name.startswith(("docker", "virbr", "br-", "cni", "veth"))
            for text in item.ipv4
        }
        for topology in topologies
    ]
    return tuple(sorted(set.intersection(*sets), key=lambda network: (-network.prefixlen, network)))


def _addresses(interface: Interface) -> tuple[str, ...]:
    return tuple(text.split("/")[0] for text in interface.ipv4)


def _address_in(interface: Interface, address: str) -> bool:
    if address in _addresses(interface):
        return True
    if interface.name != "lo":
        return False
    try:  # the kernel answers for all of 127.0.0.0/8 without listing its addresses
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _network_in(interface: Interface, network: ipaddress.IPv4Network) -> bool:
    return any(ipaddress.IPv4Interface(text).network == network for text in interface.ipv4)


def _listing(interfaces: Sequence[Interface]) -> str:
    return ", ".join(f"{item.name} {' '.join(_addresses(item))}" for item in interfaces) or "none"


def rdma_choice(node: NodeSpec, topology: Topology, tcp: TcpChoice) -> RdmaChoice:
    """The node's RDMA ports for NCCL: the pinned ones, else the usable ones near GPUs, else all usable ones."""
    usable = usable_ports(topology, tcp.interface)
    if node.overrides.ib_hca:
        return RdmaChoice(usable, "override: l40s_ib_hca in the inventory", *_gid(node, usable))
    switches = {gpu.switch for gpu in topology.gpus if gpu.switch}
    near = tuple(port for port in usable if port.switch in switches)
    ports, reason = usable, "the ACTIVE RDMA ports (none lies under a GPU's switch)"
    if near:
        ports = near
        reason = f"the ACTIVE RDMA ports under the GPUs' switches, {len(near)} of {len(topology.rdma)}"
    if not usable:
        return RdmaChoice((), _why_none(topology))
    return RdmaChoice(ports, reason, *_gid(node, ports))


def usable_ports(topology: Topology, tcp_interface: str) -> tuple[RdmaPort, ...]:
    """ACTIVE ports with an address of their own: not part of the bond or interface that carries TCP."""
    busy = {tcp_interface} if tcp_interface else set()
    busy |= {item.name for item in topology.interfaces if item.bond}
    found = [
        port
        for port in topology.rdma
        if port.active
        and port.netdev not in busy
        and (port.link_layer == "InfiniBand" or any(_is_rocev2(gid) for gid in port.gids))
    ]
    return tuple(sorted(found, key=lambda port: (_natural(port.device), port.port)))


def _why_none(topology: Topology) -> str:
    if not topology.rdma:
        return "no RDMA device"
    states = ", ".join(f"{port.name} {port.state or 'state unread'}" for port in topology.rdma)
    return f"no RDMA port is ACTIVE with a RoCE v2 address over IPv4 of its own ({states})"


def _gid(node: NodeSpec, ports: Sequence[RdmaPort]) -> tuple[int | None, str]:
    if node.overrides.gid_index is not None:
        return node.overrides.gid_index, "override: l40s_gid_index in the inventory"
    roce = [port for port in ports if port.link_layer != "InfiniBand"]
    if not roce:
        return None, "InfiniBand ports need no GID index"
    tables = [{gid.index for gid in port.gids if _is_rocev2(gid)} for port in roce]
    common = set.intersection(*tables)
    if not common:
        each = ", ".join(f"{port.name}: {sorted(table)}" for port, table in zip(roce, tables, strict=True))
        return None, f"no one GID index is RoCE v2 over IPv4 on all chosen ports ({each})"
    index = min(common)
    return index, f"GID {index} is RoCE v2 over IPv4 on all {len(roce)} chosen ports of this node"


def _is_rocev2(gid: Gid) -> bool:
    return gid.type == "RoCE v2" and gid.ipv4 is not None


def _natural(name: str) -> tuple[str, int]:
    """mlx5_2 before mlx5_10."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)
