"""What the network of each node lacks, as files for netplan, sysctl and systemd. Pure; nobody applies them here.

A card that is to move keeps its MAC address, so interfaces are matched by it. An interface that gets anything is
written with all addresses that it has: whatever configures it now may not be netplan.
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, ip_interface
from typing import Any

from orchestrator.doctor.rules.ports import pausing, traffic_class
from orchestrator.doctor.rules.rails import SMALLEST_FULL, USUAL_MTU, kept_apart
from orchestrator.doctor.rules.support.cluster import Cluster, Node, Slot
from orchestrator.model.snapshot import part
from orchestrator.model.topology import RAILS, Interface, RdmaPort
from orchestrator.topology.network import carrier, own_interface
from orchestrator.topology.pci import sort_key
from orchestrator.topology.rdma import card_of

RAIL_FILE = "etc/netplan/90-l40s-rails.yaml"
BOND_FILE = "console/etc/netplan/91-l40s-bond.yaml"
"""Apart: `netplan try` refuses a new bond with parameters, because it can't take it back (netplan, try_command.py)."""
SYSCTL_FILE = "etc/sysctl.d/90-l40s-deploy.conf"
PFC_FILE = "etc/systemd/system/l40s-lossless.service"
FIRST_HOST = 10
"""Lower ones are often a router's."""
NOWHERE = IPv4Network("0.0.0.0/32")
_NEW = tuple(IPv4Network(f"192.168.{third}.0/24") for third in range(101, 255))


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """Of one node. wanted: by path the text, after what is there now in the same form; open: what nobody here knows"""

    node: str
    wanted: Mapping[str, tuple[str, str]]
    open: tuple[str, ...] = ()

    @property
    def diff(self) -> str:
        """From what is there to what is wanted."""
        return "".join(
            line
            for path, (now, text) in self.wanted.items()
            for line in difflib.unified_diff(now.splitlines(True), text.splitlines(True), f"{self.node} now", path, n=1)
        )

    def as_json(self) -> dict[str, Any]:
        """Of `doctor --json`."""
        return {"node": self.node, "files": sorted(self.wanted), "diff": self.diff, "open": list(self.open)}


@dataclass(frozen=True, slots=True)
class _PlacedPort:
    """A port of one node, its interface or that one's bond, and what has the addresses: that, or a VLAN on it."""

    node: Node
    port: RdmaPort
    interface: Interface
    holder: Interface


def lacking(cluster: Cluster) -> tuple[NodeFiles, ...]:
    """The files of each node that lacks something, or of which something is not known."""
    known = [node for node in cluster.nodes if not node.topology.lacks(*RAILS)]
    rails = {node.name: _rails(node) for node in known}
    networks = _networks(cluster, rails)
    taken = {address.ip for address in _addresses(cluster)}
    files = [
        _of_node(node, number, rails, networks, taken) if node in known else _unread(node)
        for number, node in enumerate(cluster.nodes)
    ]
    return tuple(lacks for lacks in files if lacks.wanted or lacks.open)


def _addresses(cluster: Cluster) -> Iterator[IPv4Interface]:
    for node in cluster.nodes:
        for interface in node.topology.interfaces:
            yield from map(IPv4Interface, interface.ipv4)


def _unread(node: Node) -> NodeFiles:
    why = ", ".join(map(str, node.topology.lacks(*RAILS)[:3]))
    return NodeFiles(node.name, {}, open=(f"nothing is said of its network: not read: {why}",))


def _rails(node: Node) -> dict[Slot, _PlacedPort]:
    """Ethernet rails by the place where they are or, where their card is to be moved behind a switch, will be."""
    homes = {switch.key: number for number, switch in enumerate(node.gpu_switches, 1)}
    empty = iter([homes[switch.key] for switch in node.roles.lonely if switch.key in homes])
    away = sorted({card_of(port) for port in node.roles.away}, key=sort_key)
    moved = dict(zip(away, empty, strict=False))
    rails = {}
    for place, port in node.rail_places.items():
        own, holder = (node.interfaces.get(find(port, node.topology)) for find in (own_interface, carrier))
        if own is not None and holder is not None and port.link_layer == "Ethernet":
            switch = moved.get(card_of(port), place.switch)
            card = 1 if card_of(port) in moved else place.card
            rails[Slot(switch, card, place.port)] = _PlacedPort(node, port, own, holder)
    return rails


def _networks(cluster: Cluster, rails: Mapping[str, Mapping[Slot, _PlacedPort]]) -> dict[Slot, IPv4Network]:
    """Of each place the network that most nodes have there, else one that no node has an address in."""
    met: dict[Slot, Counter[IPv4Network]] = {}
    for places in rails.values():
        for place, rail in places.items():
            met.setdefault(place, Counter()).update(IPv4Interface(text).network for text in rail.holder.ipv4)
    used = {address.network for address in _addresses(cluster)}
    free = (network for network in _NEW if not any(network.overlaps(other) for other in used))
    return {
        place: networks.most_common(1)[0][0] if (networks := met[place]) else next(free, NOWHERE)
        for place in sorted(met)
    }


def _of_node(
    node: Node,
    number: int,
    rails: Mapping[str, Mapping[Slot, _PlacedPort]],
    networks: Mapping[Slot, IPv4Network],
    taken: set[IPv4Address],
) -> NodeFiles:
    wanted, there, unknown = dict[str, Any](), dict[str, Any](), list[str]()
    for place, rail in rails[node.name].items():
        interface, mtu = rail.interface, _mtu(place, rails)
        addresses = list(interface.ipv4)
        if not rail.holder.ipv4 and _on_a_vlan(place, rails):
            unknown.append(f"{interface.name} has no address; on other nodes a VLAN has that of this rail")
            continue
        if not rail.holder.ipv4 and not (addresses := _address(networks[place], _host(node, number), taken)):
            unknown.append(
                f"{interface.name} has no address, and {networks[place]}, its rail's network, has no free one"
            )
            continue
        if not rail.holder.ipv4 or interface.mtu < mtu:
            wanted[interface.name] = _entry(interface, addresses, max(mtu, interface.mtu))
            there[interface.name] = _entry(interface, list(interface.ipv4), interface.mtu)
    files = {RAIL_FILE: (_netplan(there), _netplan(wanted))} if wanted else {}
    files |= _beside_the_addresses(node, rails, unknown)
    return NodeFiles(node.name, files, tuple(unknown))


def _beside_the_addresses(
    node: Node, rails: Mapping[str, Mapping[Slot, _PlacedPort]], unknown: list[str]
) -> dict[str, tuple[str, str]]:
    """The bond, the kernel's settings and flow control, as they are and as they should be; lacks go to `unknown`."""
    files = dict[str, tuple[str, str]]()
    if bond := _bond(node, {rail.interface.name for rail in rails[node.name].values()}):
        files[BOND_FILE] = bond
    names = [rail.holder.name for rail in rails[node.name].values()]
    if settings := dict(_settings(node, names, unknown)):
        files[SYSCTL_FILE] = _sysctl(_now(node, names, settings)), _sysctl(settings)
    if unit := _lossless(rails, node):
        files[PFC_FILE] = "", unit
    return files


def _now(node: Node, netdevs: Sequence[str], settings: Mapping[str, int]) -> dict[str, int]:
    return {name: max(node.ipv4_setting(netdev, name) for netdev in netdevs) for name in settings}


def _sysctl(settings: Mapping[str, int]) -> str:
    return "".join(f"net.ipv4.conf.all.{name} = {value}\n" for name, value in settings.items())


def _on_a_vlan(place: Slot, rails: Mapping[str, Mapping[Slot, _PlacedPort]]) -> bool:
    ports = (places[place] for places in rails.values() if place in places)
    return any(rail.holder is not rail.interface for rail in ports)


def _mtu(place: Slot, rails: Mapping[str, Mapping[Slot, _PlacedPort]]) -> int:
    """The largest on any node in that place, if full packets fit into it."""
    largest = max(places[place].interface.mtu for places in rails.values() if place in places)
    return largest if largest >= SMALLEST_FULL else USUAL_MTU


def _host(node: Node, number: int) -> int:
    """As its address on the TCP side ends."""
    last = int(IPv4Address(node.tcp.address)) & 0xFF if node.tcp and node.tcp.address else 0
    return last if FIRST_HOST <= last < 255 else FIRST_HOST + number


def _address(network: IPv4Network, host: int, taken: set[IPv4Address]) -> list[str]:
    """The first free one, from that host on; none where there is none."""
    size, first = network.num_addresses - 2, network.network_address + 1
    for step in range(size):
        if (address := first + (host - 1 + step) % size) not in taken:
            taken.add(address)
            return [f"{address}/{network.prefixlen}"]
    return []


def _entry(interface: Interface, addresses: Sequence[str], mtu: int) -> dict[str, Any]:
    match = {} if interface.slaves else {"match": {"macaddress": interface.mac}}
    more = [text for text in interface.ipv6 if not ip_interface(text).is_link_local] if addresses else []
    return {**match, "mtu": mtu, "addresses": [*addresses, *more]}


def _bond(node: Node, rails: set[str]) -> tuple[str, str] | None:
    """What is there now; and 802.3ad over both ports of the card that carries TCP, where it runs on one and the other
    does nothing."""
    side = node.interfaces.get(node.tcp.interface) if node.tcp else None
    idle = _idle_beside(node, side, rails) if side is not None else []
    if side is None or len(idle) != 1:
        return None
    members = {name: {"match": {"macaddress": node.interfaces[name].mac}} for name in (side.name, *idle)}
    parameters = {
        "mode": "802.3ad",
        "lacp-rate": "fast",
        "mii-monitor-interval": 100,
        "transmit-hash-policy": "layer3+4",
    }
    name = next(f"bond{number}" for number in range(99) if f"bond{number}" not in node.interfaces)
    bond = {"interfaces": list(members), "parameters": parameters, "mtu": side.mtu, "addresses": list(side.ipv4)}
    commands = (
        f"# The switch's two ports must be an LACP group. Routes and name servers of {side.name} are not known here:\n"
        f"# move them to {name}, and take its addresses out of your other files. SSH may run over it.\n"
    )
    now = _netplan({side.name: _entry(side, side.ipv4, side.mtu)})
    return now, commands + _netplan(members, {name: bond})


def _idle_beside(node: Node, side: Interface, rails: set[str]) -> list[str]:
    """Ports of the same card without any use; none where that interface is no plain port."""
    card = side.address.rpartition(".")[0]
    if not card or not side.physical or side.bond or side.name in rails:
        return []
    return [
        beside.name
        for beside in node.topology.interfaces
        if beside.physical and beside.address.rpartition(".")[0] == card and beside.name not in (side.name, *rails)
        if not beside.ipv4 and not beside.bond
    ]


def _settings(node: Node, netdevs: Sequence[str], unknown: list[str]) -> Iterator[tuple[str, int]]:
    """Of net.ipv4.conf.all, of which the kernel takes the larger one of it and the interface's own."""
    shared = Counter(
        str(IPv4Interface(text).network)
        for name in set(netdevs)
        if name in node.interfaces
        for text in node.interfaces[name].ipv4
    )
    if any(node.snapshot.unread(f"/proc/sys/net/ipv4/conf/{name}/rp_filter") for name in ("all", *netdevs)):
        unknown.append("rp_filter of its rails was not read")
    elif any(count > 1 for count in shared.values()) and not all(kept_apart(node, name) for name in netdevs):
        yield from (("arp_ignore", 1), ("arp_announce", 2), ("rp_filter", 2))
    elif any(node.ipv4_setting(name, "rp_filter") == 1 for name in netdevs):
        yield "rp_filter", 2


def _lossless(rails: Mapping[str, Mapping[Slot, _PlacedPort]], node: Node) -> str:
    """A unit that turns PFC on where it is off: for the priority of `l40s_ib_tc`, else those of most other nodes."""
    starts = []
    for place, rail in rails[node.name].items():
        others = Counter(on for places in rails.values() if place in places and (on := _pauses(places[place])))
        given = traffic_class(node)
        asked: tuple[int, ...]
        if given is not None:
            asked = (given >> 5,)
        else:
            asked = others.most_common(1)[0][0] if others else ()
        if asked and _pauses(rail) == ():
            words = " ".join(f"{priority}:on" for priority in asked)
            starts.append(f"ExecStart=/usr/sbin/dcb pfc set dev {rail.port.netdev} prio-pfc {words}\n")
    head = "[Unit]\nDescription=Lossless priority of the RDMA rails\nAfter=network.target\n\n[Service]\nType=oneshot\n"
    return f"{head}{''.join(starts)}\n[Install]\nWantedBy=multi-user.target\n" if starts else ""


def _pauses(rail: _PlacedPort) -> tuple[int, ...] | None:
    return pausing(part(rail.node.snapshot.host, "flow_control").get(rail.port.netdev))


def _netplan(ethernets: Mapping[str, Any], bonds: Mapping[str, Any] | None = None) -> str:
    network: dict[str, Any] = {"version": 2, "ethernets": ethernets, **({"bonds": bonds} if bonds else {})}
    return "\n".join(_lines({"network": network}, "")) + "\n"


def _lines(mapping: Mapping[str, Any], indent: str) -> Iterator[str]:
    """YAML: plain keys, and scalars and lists as JSON has them, which is YAML too."""
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _lines(value, f"{indent}  ")
        else:
            yield f"{indent}{key}: {json.dumps(value)}"
