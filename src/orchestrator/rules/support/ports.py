"""Why an RDMA port can't carry traffic: shared by the rules about ports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.model.topology import RdmaPort
from orchestrator.rules.support.cluster import Node
from orchestrator.topology.network import gid_index
from orchestrator.topology.pci import number

_IPV4 = "/proc/sys/net/ipv4/conf"


@dataclass(frozen=True, slots=True)
class Trouble:
    """What keeps a port from carrying traffic.

    kind: 'down', 'no address', 'RoCE v1' or 'no GID'
    """

    port: RdmaPort
    kind: str
    evidence: str
    fix: str


def trouble(port: RdmaPort, node: Node, others: Iterable[Node] = ()) -> Trouble | None:
    """None for a port that works, for one whose link layer asks for no GID, and where nobody recorded its GIDs.

    others: nodes whose interface of the same name shows what the port lacks
    """
    if port.state and not port.active:
        return _down(port)
    if port.link_layer == "InfiniBand" or not port.gids_recorded or gid_index(port, node.topology).index is not None:
        return None
    return _unconfigured(port, node, others)


def ipv4_setting(node: Node, netdev: str, name: str) -> int:
    """A setting of net.ipv4.conf: the kernel takes the larger of `all` and the interface's own."""
    return max(number(node.snapshot.text(f"{_IPV4}/{scope}/{name}")) for scope in ("all", netdev))


def hears_itself(node: Node, netdev: str) -> bool:
    """Whether Linux takes a packet that comes in by this interface from an address of the same machine, and answers
    its ARP: not by default (net/ipv4/fib_frontend.c, fib_validate_source), and not where it is not known."""
    if any(node.snapshot.unread(f"{_IPV4}/{scope}/rp_filter") for scope in ("all", netdev)):
        return False
    return ipv4_setting(node, netdev, "accept_local") >= 1 and ipv4_setting(node, netdev, "rp_filter") != 1


def _down(port: RdmaPort) -> Trouble:
    where = f"/sys/class/infiniband/{port.device}/ports/{port.port}"
    states = f"state = {port.state or 'unreadable'}, phys_state = {port.phys_state or 'unreadable'}"
    up = f"run `ip link set {port.netdev} up`" if port.netdev else f"check `rdma link show {port.name}`"
    return Trouble(port, "down", f"{where}: {states}, netdev = {port.netdev or 'none'}", up)


def _unconfigured(port: RdmaPort, node: Node, others: Iterable[Node]) -> Trouble:
    interface = node.interfaces.get(port.netdev)
    addresses = ", ".join(interface.ipv4) if interface else ""
    table = ", ".join(f"{gid.index}: {gid.gid} ({gid.type or 'type unread'})" for gid in port.gids) or "none"
    evidence = (
        f"/sys/class/infiniband/{port.device}/ports/{port.port}/gids = {table}; "
        f"addresses of {port.netdev or 'its net device'} = {addresses or 'none'}"
    )
    if any(gid.ipv4 and "v1" in gid.type for gid in port.gids):
        return Trouble(
            port,
            "RoCE v1",
            evidence,
            f"allow RoCE v2 for {port.device}: cma_roce_mode -d {port.device} -m 2, or mlxconfig ROCE_CONTROL",
        )
    if addresses:
        again = (
            f"run `ip link set {port.netdev} down && ip link set {port.netdev} up`, then check"
            f" `show_gids {port.device}`"
        )
        return Trouble(port, "no GID", evidence, again)
    rail = f"give {port.netdev or port.device} an address in its rail's subnet (netplan)"
    return Trouble(port, "no address", evidence, rail + _example(port, others))


def _example(port: RdmaPort, others: Iterable[Node]) -> str:
    """The address that the first other node has there, as text; '' if none has one."""
    for node in others:
        interface = node.interfaces.get(port.netdev)
        if interface and interface.ipv4:
            return f"; {node.name} has {interface.ipv4[0]} there"
    return ""
