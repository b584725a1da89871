"""RDMA ports against those in the same place on other nodes, and against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from ipaddress import ip_interface

from orchestrator.doctor.rules.support.cluster import Cluster, Node, in_place, odd_in_place
from orchestrator.doctor.rules.support.registry import Rule, note, slow
from orchestrator.model.finding import Finding
from orchestrator.model.per_node import FEWEST_FOR_A_MAJORITY, collected
from orchestrator.model.snapshot import part
from orchestrator.model.topology import RAILS, RdmaPort
from orchestrator.topology.gpus import whole
from orchestrator.topology.network import carrier
from orchestrator.topology.speed import Traffic, price
from orchestrator.topology.stated import pasted


@Rule(
    id="RAIL-LINK-LAYER",
    title="a rail port uses another link layer than its peers",
    explain="VPI ports can be set to InfiniBand or Ethernet; the two can't communicate.",
    reads=("/sys/class/infiniband/*/ports/*/link_layer",),
    source="NCCL src/transport/net_ib/connect.cc (link layers of both ends must match)",
    weight=14,
    needs=RAILS,
).of_cluster
def rail_link_layer(cluster: Cluster) -> Iterator[Finding]:
    """One finding for each node with ports of another kind than its peers' in the same place. A node is not judged
    against itself: InfiniBand rails beside an Ethernet card for storage are as they should be."""
    for gang in cluster.gangs:
        if len(gang) >= FEWEST_FOR_A_MAJORITY:
            for node, places in odd_in_place(gang, lambda _, port: port.link_layer or None):
                yield _other_layer(node, [(port, own, common) for port, own, common in places.values()])
        elif len(gang) > 1:
            yield from _of_two(gang)


def _of_two(gang: Sequence[Node]) -> Iterator[Finding]:
    """Where two nodes differ in a place, the kind that fewer of their ports speak is the odd one."""
    first, other = gang
    differing = [
        (port, other.rail_places[place])
        for place, port in first.rail_places.items()
        if place in other.rail_places and len({port.link_layer, other.rail_places[place].link_layer, ""}) > 2
    ]
    kinds = Counter(port.link_layer for node in gang for port in node.rail_ports if port.link_layer)
    for number, node in enumerate(gang):
        odd = [
            (pair[number], pair[number].link_layer, pair[1 - number].link_layer)
            for pair in differing
            if (kinds[pair[number].link_layer], -number) < (kinds[pair[1 - number].link_layer], number - 1)
        ]
        if odd:
            yield _other_layer(node, odd)


def _other_layer(node: Node, odd: Sequence[tuple[RdmaPort, str, str]]) -> Finding:
    ports, (_, own, common) = [port for port, *_ in odd], odd[0]
    speak = "speak" if len(ports) > 1 else "speaks"
    return slow(
        f"{', '.join(port.device for port in ports)} {speak} {own}, the peers' ports in the same place {common}",
        *(f"/sys/class/infiniband/{port.device}/ports/{port.port}/link_layer = {port.link_layer}" for port in ports),
        effect="these ports can't reach their peers: " + price(Traffic.HALF_THE_PORTS),
        fix=f"mlxconfig -d DEVICE set LINK_TYPE_P1={'2' if common == 'Ethernet' else '1'} "
        "(1 InfiniBand, 2 Ethernet), then reboot",
        devices=tuple(port.device for port in ports),
        node=node.name,
    )


@Rule(
    id="RAIL-CROSSED",
    title="a rail is crossed",
    explain="The ports in the same place on every node form a rail and share a subnet. With a crossed cable or"
    " address, ports connect to the wrong peers, or to none.",
    reads=("PCI place of each RDMA port", "addresses of its net device"),
    source="comparison with peers; NCCL_CROSS_NIC in NCCL's documentation",
    weight=34,
    needs=RAILS,
).of_cluster
def rail_crossed(cluster: Cluster) -> Iterator[Finding]:
    """One finding per node, with its ports whose subnet is not the one that most nodes have in that place."""
    for group in cluster.peers:
        for node, places in odd_in_place(group, _network):
            odd = places.values()
            yield slow(
                "; ".join(
                    f"{port.device} ({port.netdev}) is in {own}, its peers in the same place are in {common}"
                    for port, own, common in odd
                ),
                *(f"address of {port.netdev} is in {own}; PCI address = {port.address}" for port, own, _ in odd),
                effect="NCCL pairs ports that can't reach each other: ibv_modify_qp fails with 110 (ETIMEDOUT), or"
                " traffic crosses the spine switch",
                fix="swap the two cables or the two addresses"
                if len(odd) == 2
                else "give it an address in the rail of its place",
                devices=tuple(word for port, *_ in odd for word in (port.device, port.netdev)),
                node=node.name,
            )


def _network(node: Node, port: RdmaPort) -> str | None:
    interface = node.interfaces.get(carrier(port, node.topology))
    return str(ip_interface(interface.ipv4[0]).network) if interface and interface.ipv4 else None


def _small_by_verbs(node: Node) -> list[Finding] | None:
    """Of ibv_devinfo: which ports with a link send smaller packets than they could."""
    sizes = part(pasted(node.snapshot), "mtus")
    ports = [port for port in node.topology.rdma if port.active and port.link_layer == "Ethernet"]
    packets = {port.device: whole(part(sizes, port.name).get("active_mtu")) for port in ports}
    small = {device: size for device, size in packets.items() if 0 < size < _FULL}
    if not small:
        return [] if any(packets.values()) else None
    names = ", ".join(f"{device} ({now})" for device, now in small.items())
    return [
        note(
            f"RoCE packets of less than {_FULL} bytes: {names}",
            *(f"ibv_devinfo of {device}: active_mtu = {now}" for device, now in small.items()),
            effect=f"more packets for the same data than with {_FULL} bytes (loss not measured)",
            fix=f"set an MTU of {SMALLEST_FULL} to {USUAL_MTU} on their interfaces, on the switch and on all peers",
            devices=tuple(small),
        )
    ]


_FULL = 4096


@Rule(
    id="RAIL-MTU",
    title="a rail's MTU is small, or differs between nodes",
    explain=(
        "RoCE uses the largest packet size of 256 to 4096 bytes that fits the MTU: below an MTU of 4200 it is 2048 or"
        " less. Checked on ports that can carry traffic; other rules report why the rest can't."
    ),
    reads=("/sys/class/net/*/mtu of every RDMA port's net device",),
    source="Linux include/rdma/ib_addr.h iboe_get_mtu; NCCL takes the smaller of both ends",
    weight=35,
    needs=RAILS,
    on_text=_small_by_verbs,
).of_cluster
def rail_mtu(cluster: Cluster) -> Iterator[Finding]:
    """One finding per node: ports that are smaller than most of their peers, else too small for full packets."""
    for group in cluster.peers:
        for node, places in in_place(group, _usable_mtu):
            small = [place for place in places.values() if place[1] != place[2] or place[1] < SMALLEST_FULL]
            if small:
                yield _small_mtu(node.name, small)


SMALLEST_FULL = 4200
USUAL_MTU = 9000


def _usable_mtu(node: Node, port: RdmaPort) -> int | None:
    interface = node.interfaces.get(port.netdev) if port in node.usable and port.link_layer == "Ethernet" else None
    return interface.mtu or None if interface else None


def _small_mtu(name: str, ports: Sequence[tuple[RdmaPort, int, int]]) -> Finding:
    """Of each port its MTU, and the one that most of its peers have."""
    parts, fixes = [], []
    for port, mtu, peers in ports:
        wanted = max(peers, mtu) if max(peers, mtu) >= SMALLEST_FULL else USUAL_MTU
        differs = f", on the other nodes {peers}" if peers != mtu else ""
        parts.append(f"{port.netdev} ({port.device}) is {mtu}{differs}")
        fixes.append(f"run `ip link set {port.netdev} mtu {wanted}`")
    smallest = min(mtu for _, mtu, _ in ports)
    packet = max((size for size in (256, 512, 1024, 2048, 4096) if size + 72 <= smallest), default=256)
    return slow(
        "MTU of " + "; ".join(parts),
        *(f"/sys/class/net/{port.netdev}/mtu = {mtu}" for port, mtu, _ in ports),
        effect=f"RoCE packets of {packet} bytes instead of 4096 (loss not measured)"
        if packet < 4096
        else "NCCL uses the smaller of both ends; it hangs if a switch or peer drops larger frames",
        fix="; ".join(fixes) + "; set the same on the switch and in netplan",
        devices=tuple(word for port, *_ in ports for word in (port.device, port.netdev)),
        node=name,
    )


@Rule(
    id="RDMA-NAMES-DIFFER",
    title="RDMA devices have a different name order than on the peers",
    explain=(
        "Before 2.29.7, NCCL numbers cards in the verbs library's order, which follows their names, and pairs equal"
        " numbers between nodes. If names do not follow the slots in the same way on every node, rails cross."
    ),
    reads=("/sys/class/infiniband/*/device (real path)",),
    source="NCCL src/transport/net_ib/init.cc (NCCL_IB_DEVICE_PCI_ORDER since 2.29.7)",
    weight=36,
    needs=RAILS,
).of_cluster
def rdma_names_differ(cluster: Cluster) -> Iterator[Finding]:
    """One finding for each node whose names are swapped; names of a card that is elsewhere or missing are other
    rules' business."""
    for group in cluster.peers:
        for node, places_of in odd_in_place(group, lambda _, port: port.device):
            places = [(place, own, common) for place, (_, own, common) in places_of.items()]
            if {device for _, device, _ in places} == {common for *_, common in places}:
                yield slow(
                    "RDMA devices have a different name order than on the other nodes: "
                    + ", ".join(f"{device} where they have {common}" for _, device, common in places),
                    *(f"{device}: {place}; on the other nodes {common}" for place, device, common in places),
                    effect="NCCL before 2.29.7 pairs ports of different rails: with separate rails ibv_modify_qp fails"
                    " with 110 (ETIMEDOUT), otherwise traffic crosses the spine switch (not measured)",
                    fix="make the names persistent with udev (rdma-core 60-rdma-persistent-naming.rules: NAME_PCI),"
                    " then reboot",
                    devices=tuple(device for _, device, _ in places),
                    node=node.name,
                )


@Rule(
    id="RAILS-SHARE-SUBNET",
    title="several RDMA ports of a node share a subnet",
    explain=(
        "By default, Linux answers ARP for any of its addresses on any interface, so peers may send to the wrong"
        " port. Use one subnet per rail with routes between them, or set arp_ignore and arp_announce."
    ),
    reads=("addresses", "/proc/sys/net/ipv4/conf/{all,INTERFACE}/{arp_ignore,arp_announce,rp_filter}"),
    source="Linux Documentation/networking/ip-sysctl.rst; NVIDIA's advice on several ports in one IP subnet",
    weight=56,
    needs=RAILS,
).of_node
def rails_share_subnet(node: Node) -> Iterator[Finding]:
    """One note for each shared subnet whose settings do not keep the ports apart."""
    for subnet, carriers in _subnets(node).items():
        ports, names = [port for port, _ in carriers], [name for _, name in carriers]
        if len({*names}) > 1 and not all(kept_apart(node, name) for name in names):
            yield note(
                f"{', '.join(port.device for port in ports)} share the subnet {subnet}",
                *(
                    f"{carrier_name}: "
                    + ", ".join(f"{name} = {node.ipv4_setting(carrier_name, name)}" for name in _ARP)
                    for carrier_name in names
                ),
                effect="traffic for several ports can arrive on one of them (not measured)",
                fix="use one subnet per rail, with routes between them; or set arp_ignore=1, arp_announce=2 and"
                " rp_filter=2: `sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2"
                " net.ipv4.conf.all.rp_filter=2`",
                devices=tuple(word for port, name in carriers for word in (port.device, name)),
            )


def _subnets(node: Node) -> dict[str, list[tuple[RdmaPort, str]]]:
    """By subnet the rail ports, each with the interface that has its addresses."""
    known = (
        (port, interface)
        for port in node.rail_ports
        if (interface := node.interfaces.get(carrier(port, node.topology)))
    )
    return collected(
        (str(ip_interface(text).network), (port, carrying.name)) for port, carrying in known for text in carrying.ipv4
    )


_ARP = ("arp_ignore", "arp_announce", "rp_filter")


def kept_apart(node: Node, netdev: str) -> bool:
    ignore, announce, rp_filter = (node.ipv4_setting(netdev, name) for name in _ARP)
    return ignore >= 1 and announce >= 2 and rp_filter != 1
