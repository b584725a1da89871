"""What of the nodes' networks the engine should use: interface, RDMA ports and GID, and RDMA or TCP for the gang.

What the operator pinned comes first, then what `topology.network` chooses.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from orchestrator.model.finding import Finding
from orchestrator.model.inventory import GangSpec, NodeSpec
from orchestrator.model.plan import GangPlan
from orchestrator.model.profile import ModelProfile
from orchestrator.model.topology import NETWORKS, RAILS, Interface, NotRead, RdmaPort, Topology
from orchestrator.protocol.errors import FindingsError, InputError, NodeError
from orchestrator.protocol.planned import Layout, Transport
from orchestrator.protocol.severity import Severity
from orchestrator.topology.gpus import Machine
from orchestrator.topology.network import (
    GidChoice,
    SharedWay,
    TcpChoice,
    address_range,
    carrier,
    common_gid_index,
    rails,
    shared_networks,
    tcp_interface,
)
from orchestrator.topology.rdma import ports_by_card
from orchestrator.topology.speed import Traffic, price, tcp_severity


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
    asked = {machine.name: [port.device for port in machine.named_ports] for machine in machines}
    shared = tcp_interface(known, asked)
    return {node.name: _tcp_choice(node, known, shared) for node in gang.nodes}


def not_read(node: str, unread: Sequence[NotRead], unknown: str, instead: str) -> NodeError:
    """What refuses to go on without something that was not read. unknown: what is not known without it; instead: what
    the operator can do if it stays unreadable."""
    areas = " and ".join(dict.fromkeys(reason.area.value for reason in unread))
    more = ", and more" if len(unread) > 1 else ""
    return NodeError(
        f"{areas} could not be read ({unread[0]}{more}), so that it is not known {unknown}",
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
    holder = next((item for item in interfaces if _has(item, address)), None)
    if holder:
        return TcpChoice(holder.name, address, f"{holder.name} has l40s_address {address}")
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
    addressed = tuple(item for item in topology.interfaces if item.up and item.ipv4 and not item.bond)
    outward = tuple(item for item in addressed if item.name != "lo")
    return outward or addressed


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
    reason = (
        f"the ACTIVE RDMA ports under the GPUs' switches, {len(ports)} of {len(topology.rdma)}"
        if chosen[0].near
        else "the ACTIVE RDMA ports (none is under a GPU's switch)"
    )
    gid = _gid(machine, ports, met)
    reach = "" if gid.index is not None else address_range(ports, topology, met)
    return RdmaChoice(ports, reason, unread, gid, reach)


def _pinned_ports(machine: Machine, met: Mapping[str, int]) -> RdmaChoice:
    """The operator may also take the port that carries TCP: a single card can do both."""
    node, topology, ports = machine.spec, machine.topology, tuple(port for port in machine.named_ports if port.active)
    if not ports and (unread := topology.lacks(*RAILS)):
        return RdmaChoice((), "what l40s_ib_hca names was not read", unread)
    if not ports:
        raise InputError(
            f"l40s_ib_hca {node.overrides.ib_hca!r} matches no ACTIVE RDMA port here: {_states(topology)}",
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
    shared = [port.name for port in topology.rdma if port.active and carrier(port, topology) == tcp.interface]
    carries = f"; {shared[0]} carries TCP" if shared else ""
    return f"no RDMA port is ACTIVE and has its own RoCE v2 address over IPv4 ({_states(topology)}{carries})"


def _states(topology: Topology) -> str:
    return ", ".join(f"{port.name} {port.state or 'state unread'}" for port in topology.rdma) or "none"


TCP = "TRANSPORT-TCP"
_PCIE_IPC = "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"
ASKED = "the inventory asks for it"


@dataclass(frozen=True, slots=True)
class TransportDecision:
    """One transport for the entire gang, why, and what an operator should know about it."""

    transport: Transport
    reason: str
    findings: tuple[Finding, ...] = ()


def decide(gang: GangSpec, rdma: Mapping[str, RdmaChoice], layout: Layout | None = None) -> TransportDecision:
    """rdma: the choice of every node whose facts were read; layout: see `topology.speed.tcp_severity`.

    Raises FindingsError where RDMA is demanded and a node has no usable port, NodeError where a node's ports were not
    all read.
    """
    wanted = gang.leader.transport
    if len(gang.nodes) == 1:
        return TransportDecision(Transport.NONE, "one node: NCCL stays inside it")
    if wanted == "tcp":
        return TransportDecision(Transport.TCP, "l40s_transport is tcp", (over_tcp(gang.name, ASKED, layout),))
    if unread_ports := [(name, choice.unread) for name, choice in rdma.items() if choice.unread]:
        raise not_read(
            *unread_ports[0], "which of its RDMA ports can be used", "set l40s_ib_hca, or `l40s_transport: tcp`"
        )
    return _with_ports(gang, rdma, layout)


def _with_ports(gang: GangSpec, rdma: Mapping[str, RdmaChoice], layout: Layout | None) -> TransportDecision:
    """RDMA where every node has a usable port, unless somebody demands it."""
    wanted = gang.leader.transport
    without = [node.name for node in gang.nodes if node.name in rdma and not rdma[node.name].ports]
    unread = [node.name for node in gang.nodes if node.name not in rdma]
    if wanted == "rdma" and without:
        raise FindingsError(
            f"l40s_transport is rdma, but {without[0]} has no usable port: {rdma[without[0]].reason}",
            where=f"node {without[0]}",
            fix="bring its RDMA ports up (`l40s-deploy doctor` shows how), or set `l40s_transport: auto`",
        )
    if wanted == "auto" and unread:
        why = f"{', '.join(unread)} could not be read"
        return TransportDecision(
            Transport.TCP, f"l40s_transport is auto, and {why}", (over_tcp(gang.name, why, layout),)
        )
    if wanted == "auto" and without:
        why = f"{without[0]}: {rdma[without[0]].reason}"
        return TransportDecision(Transport.TCP, f"l40s_transport is auto; {why}", (over_tcp(gang.name, why, layout),))
    return TransportDecision(Transport.RDMA, _rdma_words(wanted), _uneven(gang, rdma))


def _rdma_words(wanted: str) -> str:
    usable = ", and every node has usable RDMA ports" if wanted == "auto" else ""
    return f"l40s_transport is {wanted}{usable}"


def over_tcp(gang: str, why: str, layout: Layout | None, *, node: str = "") -> Finding:
    """The one verdict of `doctor`, `plan` and `up --strict` on a gang whose nodes talk over TCP."""
    return Finding(
        id=TCP,
        severity=tcp_severity(layout),
        node=node,
        title=f"gang {gang}: traffic between its nodes uses TCP",
        evidence=(why,),
        effect=price(Traffic.TCP, layout),
        fix="check each node's ports with `l40s-deploy discover`, then set `l40s_transport: rdma`. If one card"
        " carries both TCP and RDMA, set l40s_ib_hca to it",
    )


def by_hand(decision: TransportDecision, plan: GangPlan) -> Iterator[Finding]:
    """What an operator should know where variables of theirs put TCP in the place of the RDMA that was decided on."""
    nodes = [node.name for node in plan.nodes if node.network.transport is Transport.TCP]
    if decision.transport is Transport.RDMA and nodes:
        why = f"NCCL_NET or NCCL_IB_DISABLE is set for {', '.join(nodes)} (`l40s-deploy plan --sources` shows where)"
        yield over_tcp(plan.name, why, plan.layout)


def pcie_ipc(plan: GangPlan, profile: ModelProfile) -> Iterator[Finding]:
    """Whether FlashInfer's table of tuned schedules has an all-reduce over PCIe that the plan asks for (flashinfer
    0.7.2, comm/pcie_ipc_policy.py, _switchpair)."""
    ranks, hidden = plan.layout.tensor_parallel, profile.dimensions.hidden_size
    covered = (ranks == 8 and hidden >= 6144) or (ranks, hidden) == (4, 4096)
    if not covered and any(dict(node.env).get(_PCIE_IPC) == "1" for node in plan.nodes):
        yield Finding(
            id="PCIE-IPC-UNTUNED",
            severity=Severity.NOTE,
            node="",
            title=f"gang {plan.name}: no tuned PCIe all-reduce in FlashInfer for {ranks} ranks at hidden {hidden}",
            effect="its table has 8 ranks from 6144 on and 4 ranks at 4096 (flashinfer issue 4463); others fall back",
            fix=f"measure with and without {_PCIE_IPC}: `l40s-deploy bench`; the log says whether it is in use",
        )


def _uneven(gang: GangSpec, rdma: Mapping[str, RdmaChoice]) -> tuple[Finding, ...]:
    counts = {node.name: len(rdma[node.name].ports) for node in gang.nodes if node.name in rdma}
    if len(set(counts.values())) < 2:
        return ()
    return (
        Finding(
            id="RDMA-PORTS-UNEVEN",
            severity=Severity.SLOW,
            node="",
            title=f"gang {gang.name}: its nodes have different numbers of RDMA ports",
            evidence=tuple(f"{name}: {count}" for name, count in counts.items()),
            effect="NCCL uses as many as the node with the fewest has; it logs this only at INFO level",
            fix="bring the missing ports up",
        ),
    )


@dataclass(frozen=True, slots=True)
class DataNetwork:
    """addresses: each node's in it. reason: why this one, with interface and speed; for people"""

    addresses: Mapping[str, str]
    reason: str


def _has_interface(ways: Mapping[str, SharedWay], interface: str) -> bool:
    return any(way.interface.name == interface for way in ways.values())


def _slowest_words(ways: Mapping[str, SharedWay]) -> str:
    slowest = min(way.interface.speed_mbps for way in ways.values())
    return f"{slowest / 1000:g} Gbit/s" if slowest else "speed unread"


def data_network(topologies: Mapping[str, Topology], interface: str = "") -> DataNetwork:
    """One network for all nodes; RDMA rails count too, since nothing but their speed matters here.

    interface: the operator's word: one that leads to the network to use
    Raises InputError where there is none.
    """
    networks = [ways for ways in shared_networks(topologies) if not interface or _has_interface(ways, interface)]
    if not networks:
        wanted = f"no network on {interface}" if interface else "no IPv4 network"
        raise InputError(
            f"{wanted} is shared by {', '.join(topologies)}",
            where="network",
            fix="list every node's interfaces with `l40s-deploy discover`",
        )
    best = min(networks, key=_rank)
    names = sorted({way.interface.name for way in best.values()})
    about = [_slowest_words(best)]
    if interface:
        about.append("--interface")
    elif len(networks) > 1:
        about.append(f"the fastest of {len(networks)} shared networks")
    reason = f"{', '.join(names)} ({', '.join(about)})"
    return DataNetwork({name: way.address for name, way in best.items()}, reason)


def _rank(ways: Mapping[str, SharedWay]) -> tuple[int, int, str]:
    """The fastest first; of equals one that the engine's rails do not use."""
    return (
        -min(way.interface.speed_mbps for way in ways.values()),
        sum(way.is_rail for way in ways.values()),
        min(way.interface.name for way in ways.values()),
    )
