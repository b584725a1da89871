"""What of a node's network the engine should use: what the operator pinned, else what `topology.network` chooses."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from orchestrator.model.errors import InputError, NodeError
from orchestrator.model.inventory import GangSpec, NodeSpec
from orchestrator.model.topology import NETWORKS, RAILS, Interface, NotRead, RdmaPort, Topology
from orchestrator.topology.machine import Machine
from orchestrator.topology.network import (
    GidChoice,
    TcpChoice,
    address_range,
    carrier,
    common_gid_index,
    rails,
    tcp_interface,
)
from orchestrator.topology.rdma import ports_by_card


@dataclass(frozen=True, slots=True)
class RdmaChoice:
    """RDMA ports for NCCL; none where this node has none that are usable. reason says which rule chose them.

    unread:  what may hide other ports, or that these are none; empty where the operator named the ports
    gid:     one index that serves all of them, None where there is none or none is needed
    range:   where there is no such index: an IPv4 network that tells each port's address from its others, or ''
    """

    ports: tuple[RdmaPort, ...]
    reason: str
    unread: tuple[NotRead, ...] = ()
    gid: GidChoice = field(default_factory=lambda: GidChoice(None, ""))
    range: str = ""


def two_ports_of_a_card(choice: RdmaChoice) -> bool:
    """Whether one card has two of these ports: NCCL makes one device of them (NCCL_IB_MERGE_NICS)."""
    return len(ports_by_card(choice.ports)) < len(choice.ports)


def tcp_choices(gang: GangSpec, topologies: Mapping[str, Topology]) -> dict[str, TcpChoice]:
    """One interface and address a node; the interface is '' where no facts were read.

    Raises InputError where the inventory pins something that the node does not have, and where the nodes share no
    network; NodeError where a node's networks were not read and the inventory does not name its interface.
    """
    known = {}
    for node in gang.nodes:
        unread = topologies[node.name].lacks(*NETWORKS) if node.name in topologies else ()
        if unread and not node.overrides.socket_ifname:
            raise not_read(node.name, unread, "which address it has", "set l40s_socket_ifname")
        if node.name in topologies and not unread:
            known[node.name] = topologies[node.name]
    machines = [Machine(node, known[node.name]) for node in gang.nodes if node.name in known]
    asked = {one.name: [port.device for port in one.named_ports] for one in machines}
    shared = tcp_interface(known, asked)
    return {node.name: _tcp_choice(node, known, shared) for node in gang.nodes}


def not_read(node: str, unread: Sequence[NotRead], unknown: str, instead: str) -> NodeError:
    """What refuses to go on without something that was not read. unknown: what is not known without it; instead: what
    the operator can do if it stays unreadable."""
    areas = " and ".join(dict.fromkeys(one.area.value for one in unread))
    return NodeError(
        f"{areas} could not be read ({unread[0]}{', and more' * (len(unread) > 1)}), so that it is not known {unknown}",
        where=f"node {node}",
        fix=f"run the command again, when the node is less busy; if it stays so, {instead}",
    )


def _tcp_choice(node: NodeSpec, known: Mapping[str, Topology], shared: Mapping[str, TcpChoice]) -> TcpChoice:
    topology = known.get(node.name)
    interfaces = _with_ipv4(topology) if topology else ()
    if node.overrides.socket_ifname:
        return _pinned(node, node.overrides.socket_ifname, topology, interfaces)
    if node.address:
        return _by_address(node, node.address, interfaces)
    if not interfaces:
        return TcpChoice("", node.reach.host, "ansible_host; no interfaces were read, and l40s_address is not set")
    if node.name not in shared:
        raise InputError(
            "no interface has an IPv4 address in a network that all nodes of the gang share; it has "
            + _listing(interfaces),
            where=f"node {node.name}",
            fix="set l40s_address for every node, or l40s_socket_ifname",
        )
    return shared[node.name]


def _pinned(node: NodeSpec, asked: str, topology: Topology | None, interfaces: Sequence[Interface]) -> TcpChoice:
    reason = "override: l40s_socket_ifname in the inventory"
    name = asked.removeprefix("=")
    if "^" in name or "," in name:
        raise InputError(
            f"l40s_socket_ifname {asked!r} matches several interfaces, but Gloo takes one",
            where=f"inventory: {node.name}: l40s_socket_ifname",
            fix="name one interface: " + _listing(interfaces),
        )
    if topology is None or not topology.interfaces:
        return TcpChoice(name, node.address or node.reach.host, reason)
    interface = topology.interface(name)
    if interface is None or not _addresses(interface):
        raise InputError(
            f"l40s_socket_ifname {asked!r} is not an interface with an IPv4 address here: {_listing(interfaces)}",
            where=f"inventory: {node.name}: l40s_socket_ifname",
            fix="set it to one of these interfaces, or remove it",
        )
    return TcpChoice(name, node.address or _addresses(interface)[0], reason)


def _by_address(node: NodeSpec, address: str, interfaces: Sequence[Interface]) -> TcpChoice:
    found = next((item for item in interfaces if _has(item, address)), None)
    if found:
        return TcpChoice(found.name, address, f"{found.name} has l40s_address {address}")
    if ":" in address:
        raise InputError(
            f"l40s_address {address} is IPv6, which is not supported",
            where=f"inventory: {node.name}: l40s_address",
            fix="give an IPv4 address" + (f": {_listing(interfaces)}" if interfaces else ""),
        )
    if interfaces:
        raise InputError(
            f"no interface of this node has the l40s_address {address}: {_listing(interfaces)}",
            where=f"inventory: {node.name}: l40s_address",
            fix="set l40s_address to one of these addresses, or remove it",
        )
    return TcpChoice("", address, "l40s_address in the inventory; no interfaces were read")


def _with_ipv4(topology: Topology) -> tuple[Interface, ...]:
    """Interfaces that are up and have an address; loopback only where there is nothing else."""
    found = tuple(item for item in topology.interfaces if item.up and item.ipv4 and not item.bond)
    outward = tuple(item for item in found if item.name != "lo")
    return outward or found


def _addresses(interface: Interface) -> tuple[str, ...]:
    return tuple(text.partition("/")[0] for text in interface.ipv4)


def _has(interface: Interface, address: str) -> bool:
    if address in _addresses(interface):
        return True
    if interface.name != "lo":
        return False
    try:  # the kernel answers for all of 127.0.0.0/8 without listing its addresses
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _listing(interfaces: Sequence[Interface]) -> str:
    return ", ".join(f"{item.name} {' '.join(_addresses(item))}" for item in interfaces) or "none"


def rdma_choice(machine: Machine, tcp: TcpChoice, met: Mapping[str, int] = MappingProxyType({})) -> RdmaChoice:
    """The node's RDMA ports for NCCL: the pinned ones, else the rails; and their GID in the network that
    most nodes are in (met: networks_met). Raises InputError for a pin that fits none."""
    topology = machine.topology
    if machine.spec.overrides.ib_hca:
        return _pinned_ports(machine, met)
    unread = topology.lacks(*RAILS)
    chosen = rails(topology, tcp)
    if not chosen:
        return RdmaChoice((), _why_none(topology, tcp), unread)
    ports = tuple(rail.port for rail in chosen)
    reason = "the ACTIVE RDMA ports (none is under a GPU's switch)"
    if chosen[0].near:
        reason = f"the ACTIVE RDMA ports under the GPUs' switches, {len(ports)} of {len(topology.rdma)}"
    gid = _gid(machine, ports, met)
    reach = "" if gid.index is not None else address_range(ports, topology, met)
    return RdmaChoice(ports, reason, unread, gid, reach)


def _pinned_ports(machine: Machine, met: Mapping[str, int]) -> RdmaChoice:
    """The operator may also take the port that carries TCP: a single card can do both."""
    node, topology, ports = machine.spec, machine.topology, tuple(port for port in machine.named_ports if port.active)
    if not ports and (unread := topology.lacks(*RAILS)):
        return RdmaChoice((), "what l40s_ib_hca names was not read", unread)
    if not ports:
        each = ", ".join(f"{port.name} {port.state or 'state unread'}" for port in topology.rdma) or "none"
        raise InputError(
            f"l40s_ib_hca {node.overrides.ib_hca!r} matches no ACTIVE RDMA port here: {each}",
            where=f"inventory: {node.name}: l40s_ib_hca",
            fix="set it to ports that are up, or remove it",
        )
    return RdmaChoice(ports, "override: l40s_ib_hca in the inventory", gid=_gid(machine, ports, met))


def _gid(machine: Machine, ports: Sequence[RdmaPort], met: Mapping[str, int]) -> GidChoice:
    if machine.spec.overrides.gid_index is not None:
        return GidChoice(machine.spec.overrides.gid_index, "override: l40s_gid_index in the inventory")
    return common_gid_index(ports, machine.topology, met)


def _why_none(topology: Topology, tcp: TcpChoice) -> str:
    if not topology.rdma:
        return "no RDMA device"
    states = ", ".join(f"{port.name} {port.state or 'state unread'}" for port in topology.rdma)
    shared = next((port.name for port in topology.rdma if port.active and carrier(port, topology) == tcp.interface), "")
    shared = f"; {shared} carries TCP" if shared else ""
    return f"no RDMA port is ACTIVE and has its own RoCE v2 address over IPv4 ({states}{shared})"
