"""RDMA ports that can't carry traffic, lose packets or are slowed down, and bonds that run short."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from orchestrator.doctor.rules.placement import wiring_of
from orchestrator.doctor.rules.support.cluster import Node, port_devices
from orchestrator.doctor.rules.support.registry import Rule, finding, note, slow, stop, unjudged, unknown
from orchestrator.model.finding import Finding
from orchestrator.model.per_node import collected
from orchestrator.model.snapshot import part
from orchestrator.model.topology import RAILS, Interface, RdmaPort
from orchestrator.protocol.severity import Severity
from orchestrator.topology.machines import LINK_ERRORS, LOST
from orchestrator.topology.network import PortFault, carrier, is_bonded, own_interface, port_fault
from orchestrator.topology.pci import number
from orchestrator.topology.rdma import card_of, port_folder
from orchestrator.topology.speed import Traffic, price, tcp_severity


def _without_device_file(node: Node, files: Sequence[str]) -> dict[str, str]:
    """Of the devices that the rails need, those whose file the probe did not list: by device, the evidence."""
    meant = {port.device for port in node.rail_ports}
    names = node.snapshot.names("/sys/class/infiniband_verbs")
    devices = {name: node.snapshot.text(f"/sys/class/infiniband_verbs/{name}/ibdev") for name in names}
    return {
        device: f"/dev/infiniband/{name} ({device}): does not exist"
        for name, device in devices.items()
        if device in meant and f"/dev/infiniband/{name}" not in files
    }


@Rule(
    id="RDMA-NO-DEVICE-FILE",
    title="RDMA device files or libraries are missing where the engine will run",
    explain=(
        "libibverbs opens /dev/infiniband/uverbsN. A container must be given these files; on a host, ib_uverbs must"
        " be loaded. Without the library, NCCL finds no RDMA device."
    ),
    reads=("/sys/class/infiniband_verbs/*/ibdev", "names in /dev/infiniband", "dlopen of libibverbs.so.1"),
    source="rdma-core libibverbs; sglang issue 1427 (libibverbs missing in the runtime)",
    weight=16,
    needs=RAILS,
).of_node
def rdma_no_device_file(node: Node) -> Iterator[Finding]:
    """A stop where the probe listed the device files and RDMA is wanted."""
    files, host = node.snapshot.host.get("devices"), node.snapshot.host
    if not isinstance(files, (list, tuple)) or node.spec.transport == "tcp":
        return
    if why := host.get("devices_error"):
        yield unjudged(rdma_no_device_file, node, "the device files", (str(why),))
        return
    missing = _without_device_file(node, files)
    meant = bool(node.rail_ports)
    no_library = ["dlopen libibverbs.so.1: no such library"] if meant and host.get("libibverbs") is False else []
    if missing or no_library:
        yield stop(
            f"{', '.join(missing)} can't be opened: no device file" if missing else "libibverbs is missing",
            *missing.values(),
            *no_library,
            effect="NCCL finds no RDMA device and the gang fails to start (NCCL_NET=IB), or falls back to TCP",
            fix="run `sudo modprobe ib_uverbs`; in a container, add --device=/dev/infiniband"
            if missing
            else "run `sudo apt install libibverbs1 ibverbs-providers`",
            devices=tuple(missing) or ("libibverbs.so.1",),
        )


def _near_and_down(node: Node) -> list[Finding] | None:
    """Of the ports near GPUs by path types, of which a tool told the state."""
    seen = wiring_of(node)
    if seen is None:
        return _down_somewhere(node)
    near = {nic for group in seen.served for nic in group.nics}
    ports = [port for port in node.topology.rdma if port.device in near and port.state]
    down = [broken for broken in _broken_ports(node, ports) if broken.fault is PortFault.NO_LINK]
    if not down:
        return [] if ports else None
    return [_near_without_link(down, Traffic.HALF_THE_PORTS if len(down) < len(ports) else Traffic.TCP)]


def _near_without_link(down: Sequence[BrokenPort], traffic: Traffic) -> Finding:
    """traffic: what is left to the gang"""
    return slow(
        _without_link(down),
        *(broken.evidence for broken in down),
        effect=price(traffic),
        fix=f"plug the cable, enable the switch's port, then {'; '.join(broken.fix for broken in down)}",
        devices=tuple(broken.port.device for broken in down),
    )


def _down_somewhere(node: Node) -> list[Finding] | None:
    """Of ports of which a tool told the state and nothing where they are: they may be spare ones."""
    ports = [port for port in node.topology.rdma if port.state]
    down = [broken for broken in _broken_ports(node, ports) if broken.fault is PortFault.NO_LINK]
    if not down:
        return [] if ports else None
    return [
        note(
            f"{len(down)} of {len(ports)} RDMA ports in the text: {_without_link(down)}",
            *(broken.evidence for broken in down),
            effect="none where they are spare ports; NCCL leaves them out",
            fix="compare them with the ports that NCCL_IB_HCA names; plug the cable, enable the switch's port"
            + "".join(f"; {broken.port.device}: {broken.fix}" for broken in down if broken.fix == _SUBNET_MANAGER),
            devices=tuple(broken.port.device for broken in down),
        )
    ]


@Rule(
    id="RDMA-PORT-DOWN",
    title="RDMA ports have no link",
    explain=(
        "NCCL silently skips ports that are not ACTIVE; with none left it falls back to TCP sockets. If some ports of"
        " a node have no link, its unconfigured ports are reported in the same finding."
    ),
    reads=("/sys/class/infiniband/*/ports/*/state", "/sys/class/infiniband/*/ports/*/phys_state"),
    source="NCCL src/transport/net_ib (ncclIbInit skips what is not IBV_PORT_ACTIVE); the articles' second fault",
    weight=20,
    needs=RAILS,
    on_text=_near_and_down,
).of_node
def rdma_port_down(node: Node) -> Iterator[Finding]:
    """One finding per node, with its unusable ports; a spare port of the main card is listed there, or noted."""
    broken_ports, spare = _broken_ports(node, node.rail_ports), _spare_ports_down(node)
    if any(broken.fault is PortFault.NO_LINK for broken in broken_ports):
        yield _down(node, [*broken_ports, *spare])
    elif spare:
        yield note(
            f"the TCP side has no spare port: {_names(spare)} has no link",
            *(broken.evidence for broken in spare),
            effect="no cost while RDMA carries the traffic; rendezvous and HTTP have no spare port",
            fix="cable it, and bond both ports",
            devices=tuple(broken.port.device for broken in spare),
        )


class BrokenPort(NamedTuple):
    """A port, what keeps it from carrying traffic, and what can be done about it."""

    port: RdmaPort
    fault: PortFault
    evidence: str
    fix: str


def _broken_ports(node: Node, ports: Iterable[RdmaPort]) -> list[BrokenPort]:
    faults = [(port, fault) for port in ports if (fault := port_fault(port, node.topology))]
    return [_broken_port(node, port, fault) for port, fault in faults if fault is not PortFault.UNREAD]


def _broken_port(node: Node, port: RdmaPort, fault: PortFault) -> BrokenPort:
    folder, netdev, device = f"/sys/class/infiniband/{port.device}/ports/{port.port}", port.netdev, port.device
    if fault is PortFault.NO_LINK:
        evidence = f"state = {port.state}, phys_state = {port.phys_state or 'unreadable'}, netdev = {netdev or 'none'}"
        return BrokenPort(port, fault, f"{folder}: {evidence}", _link_fix(port))
    interface = node.interfaces.get(netdev)
    addresses = ", ".join(interface.ipv4 if interface else ()) or "none"
    table = ", ".join(f"{gid.index}: {gid.gid} ({gid.type or 'type unread'})" for gid in port.gids) or "none"
    evidence = f"{folder}/gids = {table}; addresses of {netdev or 'its net device'} = {addresses}"
    fixes = {
        PortFault.ROCE_V1: f"allow RoCE v2 for {device}: cma_roce_mode -d {device} -m 2, or mlxconfig ROCE_CONTROL",
        PortFault.NO_GID: f"run `ip link set {netdev} down && ip link set {netdev} up`, then check"
        f" `show_gids {device}`",
        PortFault.NO_ADDRESS: f"give {netdev or device} an address in its rail's subnet (netplan)",
    }
    return BrokenPort(port, fault, evidence, fixes[fault])


def _link_fix(port: RdmaPort) -> str:
    if port.phys_state == "LinkUp" and port.link_layer == "InfiniBand":
        return _SUBNET_MANAGER
    return f"run `ip link set {port.netdev} up`" if port.netdev else f"check `rdma link show {port.name}`"


def _spare_ports_down(node: Node) -> list[BrokenPort]:
    """Dead ports beside the one that carries TCP; those of a bond are the bond's."""
    carried = [port for port in node.topology.rdma if carrier(port, node.topology) == node.tcp_side]
    main = {card_of(port) for port in carried if node.tcp_side}
    spare = [port for port in _own_ports(node) if port not in node.rail_ports and card_of(port) in main]
    return _broken_ports(node, [port for port in spare if not port.active])


def _own_ports(node: Node) -> list[RdmaPort]:
    own = [port for port in node.topology.rdma if not port.virtual]
    return [port for port in own if port in node.rail_ports or not is_bonded(port, node.topology)]


def _names(broken_ports: Sequence[BrokenPort]) -> str:
    return ", ".join(broken.port.device for broken in broken_ports)


def _without_link(down: Sequence[BrokenPort]) -> str:
    """A port that is not ACTIVE although its physical link is up waits for whom configures it."""
    waiting = [broken for broken in down if broken.port.phys_state == "LinkUp"]
    cut = [broken for broken in down if broken not in waiting]
    verb = "has" if len(cut) == 1 else "have"
    words = [f"{_names(cut)} {verb} no link"] if cut else []
    words += [f"{broken.port.device} is {broken.port.state} though its physical link is up" for broken in waiting]
    return ", ".join(words)


_SUBNET_MANAGER = "see whether a subnet manager runs (`sminfo`) and configures it, of a virtual function its policy too"


def _down(node: Node, broken_ports: Sequence[BrokenPort]) -> Finding:
    broken_ports = sorted(broken_ports, key=lambda broken: node.topology.rdma.index(broken.port))
    down = [broken for broken in broken_ports if broken.fault is PortFault.NO_LINK]
    idle = [broken for broken in broken_ports if broken.fault is not PortFault.NO_LINK]
    severity, effect = _cost(node)
    up = "; ".join(broken.fix for broken in down)
    return finding(
        severity,
        f"{len(broken_ports)} of {len(_own_ports(node))} RDMA ports {'is' if len(broken_ports) == 1 else 'are'} down or"
        f" unconfigured: {_without_link(down)}" + (f", {_names(idle)} no usable address" if idle else ""),
        *(broken.evidence for broken in broken_ports),
        effect=effect,
        fix=f"{_names(down)}: plug the cable, enable the switch's port, then {up}"
        + "".join(f"; {broken.port.device}: {broken.fix}" for broken in idle),
        devices=tuple(broken.port.device for broken in (*down, *idle)),
    )


def _cost(node: Node) -> tuple[Severity, str]:
    """Severity and effect of ports that carry nothing, by whether others are left."""
    if node.usable:
        return Severity.SLOW, price(Traffic.HALF_THE_PORTS)
    effect = "no RDMA from this node: the whole gang falls back to TCP; " + price(Traffic.TCP, node.layout)
    return tcp_severity(node.layout), effect


@Rule(
    id="RDMA-PORT-UNCONFIGURED",
    title="an RDMA port is up but has no RoCE v2 address",
    explain=(
        "RoCE v2 between nodes needs an IPv4 GID; the kernel makes one per address. On a node that also has ports"
        " without a link, RDMA-PORT-DOWN reports both."
    ),
    reads=("/sys/class/infiniband/*/ports/*/gids/*", ".../gid_attrs/types/*", ".../gid_attrs/ndevs/*"),
    source="NCCL src/transport/net_ib ncclIbGetGidIndex",
    weight=21,
    needs=RAILS,
).of_node
def rdma_port_unconfigured(node: Node) -> Iterator[Finding]:
    """One finding per node; RoCE v1 only, a missing GID and a missing address are distinguished."""
    broken_ports = _broken_ports(node, node.rail_ports)
    if broken_ports and not any(broken.fault is PortFault.NO_LINK for broken in broken_ports):
        yield _unconfigured(node, broken_ports)
    unread = [port for port in node.rail_ports if not port.gids_recorded and port.link_layer != "InfiniBand"]
    if unread:
        yield unknown(
            f"whether {len(unread)} RDMA port{'s have' if len(unread) > 1 else ' has'} a RoCE v2 address "
            "was not recorded",
            *(f"{port.device}: no GID table in this input" for port in unread[:4]),
            effect="a port without such an address carries nothing: if so, " + price(Traffic.HALF_THE_PORTS),
            fix=node.input.again,
            devices=tuple(port.device for port in unread),
        )


_UNCONFIGURED = {
    PortFault.NO_ADDRESS: "{ports} up without an IPv4 address",
    PortFault.ROCE_V1: "{ports} offering RoCE v1 only",
    PortFault.NO_GID: "{ports} with an address but no RoCE v2 GID for it",
}


def _unconfigured(node: Node, broken_ports: Sequence[BrokenPort]) -> Finding:
    ports, (severity, effect) = [broken.port for broken in broken_ports], _cost(node)
    named = collected(
        (
            broken.fault,
            f"{broken.port.device} ({broken.port.netdev})" if broken.port.netdev else broken.port.device,
        )
        for broken in broken_ports
    )
    parts = (words.format(ports=", ".join(named[fault])) for fault, words in _UNCONFIGURED.items() if fault in named)
    return finding(
        severity,
        f"{len(broken_ports)} of {len(node.rail_ports)} RDMA ports can't be used: " + "; ".join(parts),
        *(broken.evidence for broken in broken_ports),
        effect=effect,
        fix="; ".join(broken.fix for broken in broken_ports),
        devices=(*(port.device for port in ports), *(port.netdev for port in ports if port.netdev)),
    )


@Rule(
    id="BOND-SHORT",
    title="a bond runs without some of its ports",
    explain=(
        "Rendezvous, HTTP and, without RDMA, all traffic cross the TCP side's bond; the GPUs' traffic crosses one"
        " that is a rail. A port that is up but that the switch did"
        " not add to the LACP group is in another aggregator, and carries nothing."
    ),
    reads=("/sys/class/net/*/bonding_slave/{mii_status,ad_aggregator_id}", "/sys/class/net/*/bonding/ad_aggregator"),
    source="Linux Documentation/networking/bonding.rst",
    weight=30,
).of_node
def bond_short(node: Node) -> Iterator[Finding]:
    """One finding a bond."""
    rails = {own_interface(port, node.topology) for port in node.rail_ports}
    for bond in node.topology.interfaces:
        idle, total = dict(_idle_slaves(node, bond)), len(bond.slaves)
        alive, names = total - len(idle), ", ".join(idle)
        carries = "requests arrive over it, and weights where they are on the network"
        if bond.name in rails:
            carries = "it is a rail: the gang's RDMA traffic waits for the slowest (not measured)"
        if idle:
            yield slow(
                f"{bond.name} runs on {alive} of {total} ports: {names} carries nothing",
                *idle.values(),
                effect=f"{bond.name} has {alive} of {total} of its bandwidth"
                f"{' and no spare port' if alive < 2 else ''}; {carries}",
                fix=f"check the cable of {names} and LACP on the switch ports; `cat /proc/net/bonding/{bond.name}`"
                " shows the state",
                devices=(bond.name, *idle),
            )


def _idle_slaves(node: Node, bond: Interface) -> Iterator[tuple[str, str]]:
    """Slaves that carry nothing, each with the value that shows it."""
    active = node.snapshot.text(f"/sys/class/net/{bond.name}/bonding/ad_aggregator")
    for slave in bond.slaves:
        folder = f"/sys/class/net/{slave}/bonding_slave"
        status = node.snapshot.text(f"{folder}/mii_status")
        aggregator = node.snapshot.text(f"{folder}/ad_aggregator_id")
        if status and status != "up":
            yield slave, f"{folder}/mii_status = {status}"
        elif active and aggregator and aggregator != active:
            yield slave, f"{folder}/ad_aggregator_id = {aggregator}, the bond's active one is {active}"


@Rule(
    id="LOSSLESS-UNMARKED",
    title="a port pauses for a priority that NCCL's packets do not have",
    explain=(
        "Priority flow control (PFC) keeps one priority from being lost; switches know it by the packets' DSCP. NCCL"
        " sends with DSCP 0 where nothing else is set, so that its packets are dropped when a queue is full, as on a"
        " network without PFC. `l40s_ib_tc` sets NCCL_IB_TC: DSCP x 4, and 2 for ECN. Which priority a DSCP has is the"
        " card's and the switch's setting; by mlx5's default it is DSCP / 8, which is assumed here."
    ),
    reads=("IEEE 802.1Qaz settings of network cards, by netlink (RTM_GETDCB)", "`l40s_ib_tc` and `l40s_env`"),
    source="NCCL user guide, NCCL_IB_TC; linux/dcbnl.h, struct ieee_pfc; Linux mlx5 driver, dscp2prio",
    weight=36,
    needs=RAILS,
).of_node
def lossless_unmarked(node: Node) -> Iterator[Finding]:
    """One note a port."""
    flow_control, given = part(node.snapshot.host, "flow_control"), traffic_class(node)
    ours = (given or 0) >> 5
    for port in node.rail_ports:
        raw = flow_control.get(port.netdev)
        paused = pausing(raw)
        if port.link_layer != "Ethernet" or paused is None or ours in paused or (given is None and not paused):
            continue
        pauses = f"priority {', '.join(map(str, paused))}" if paused else "no priority"
        yield note(
            f"{port.netdev} is lossless for {pauses}, but NCCL's packets have priority {ours}",
            f"{port.netdev}: PFC on for {pauses} (struct ieee_pfc: {raw})",
            f"{_VARIABLE}: {'not set' if given is None else given} (DSCP {(given or 0) >> 2})",
            effect="packets are lost when a switch's queue is full, and RoCE sends entire windows again (not measured)",
            fix=_mark_as(paused),
            devices=port_devices(port),
        )


def _mark_as(paused: Sequence[int]) -> str:
    """The fix, by the priorities that a card pauses."""
    if not paused:
        return "turn PFC on for that priority on this card and its switch port (`dcb pfc`), or remove l40s_ib_tc"
    # DSCP 8 x priority + 2, as NVIDIA's guides take 26 for 3, and ECN
    wanted = (8 * paused[0] + 2) << 2 | 2
    return f"set l40s_ib_tc: {wanted} in the inventory (DSCP {wanted >> 2}), if the switches map that DSCP to it"


_ENABLED = 1
"""Byte of `struct ieee_pfc` with a bit for each priority that pauses."""
_VARIABLE = "NCCL_IB_TC"


def pausing(raw: object) -> tuple[int, ...] | None:
    """Priorities that pause; None where nothing was read."""
    try:
        enabled = bytes.fromhex(str(raw))[_ENABLED]
    except (ValueError, IndexError):
        return None
    return tuple(bit for bit in range(8) if enabled >> bit & 1)


def traffic_class(node: Node) -> int | None:
    """The one that the plan sets; None for NCCL's own, 0."""
    if node.spec.overrides.ib_tc is not None:
        return node.spec.overrides.ib_tc
    value = dict(node.spec.overrides.env).get(_VARIABLE, "")
    return int(value) if value.isdigit() else None


def _congested_by_text(node: Node) -> list[Finding] | None:
    ports = _counted(node)
    return [*_congested(node, ports)] if ports else None


def _counted(node: Node) -> list[RdmaPort]:
    """Whose counters a text has."""
    return [port for port in node.topology.rdma if _counters(node, port)[0]]


@Rule(
    id="RDMA-CONGESTED",
    title="congestion slowed an RDMA port down",
    explain=(
        "A switch whose queue fills marks packets (ECN), the receiver sends CNPs, and the sender slows down; with PFC"
        " the switch sends pause frames. No packet is lost, as intended. A high count means that a rail is shared,"
        " oversubscribed or cabled through a narrow link. Pauses are reported where the driver shows them among its"
        " RDMA counters; mlx5 has them in `ethtool -S`, which is not read."
    ),
    reads=("/sys/class/infiniband/*/ports/*/hw_counters/*", "/sys/class/infiniband/*/ports/*/counters/*"),
    source="NVIDIA, Understanding mlx5 Linux Counters (np_cnp_sent, rp_cnp_handled, np_ecn_marked_roce_packets, "
    "rx_prioN_pause)",
    weight=37,
    needs=RAILS,
    on_text=_congested_by_text,
).of_node
def rdma_congested(node: Node) -> Iterator[Finding]:
    """One note a port, where one packet in a thousand met a full queue; the cost was not measured on L40S."""
    yield from _congested(node, node.rail_ports)


def _congested(node: Node, ports: Iterable[RdmaPort]) -> Iterator[Finding]:
    for port in ports:
        counters, packets, in_packets = _counters(node, port)
        signs = {path: count for path, count in counters.items() if count >= 10_000 and _CONGESTION.search(path)}
        if signs and max(signs.values()) * 1_000 >= packets:
            yield note(
                f"{port.device} received {max(signs.values())} congestion notifications{in_packets}",
                *(f"{port_folder(node.snapshot, port)}/{path} = {count}" for path, count in signs.items()),
                effect="collectives wait for the slowest rail (not measured)",
                fix="check on the switch which queues fill up: look for a slower link, two rails over one uplink, or"
                " other traffic in the same priority",
                devices=port_devices(port),
            )


_CONGESTION = re.compile(r"/(rp_cnp_handled|np_cnp_sent|np_ecn_marked_roce_packets|[rt]x_prio[0-7]_pause)$")
"""Counted by 10,000 and more: every start of a gang meets some."""


def _counters(node: Node, port: RdmaPort) -> tuple[dict[str, int], int, str]:
    """What a port counted since its driver was loaded, by 'hw_counters/NAME' or 'counters/NAME', and how many packets:
    as a number and as words."""
    folder = port_folder(node.snapshot, port)
    counters = {
        f"{kind}/{name}": max(0, number(node.snapshot.text(f"{folder}/{kind}/{name}")))
        for kind in ("hw_counters", "counters")
        for name in node.snapshot.names(f"{folder}/{kind}")
    }
    packets = sum(counters.get(name, 0) for name in _PACKETS)
    return counters, packets, f" in {packets} packets" if packets else ""


_PACKETS = ("counters/port_rcv_packets", "counters/port_xmit_packets")


def _losses_of_text(node: Node) -> list[Finding] | None:
    ports = _counted(node)
    return [*_losses(node, ports)] if ports else None


@Rule(
    id="RDMA-LOSSES",
    title="an RDMA port lost packets",
    explain=(
        "When a packet is lost, RoCE sends the entire window again; a lossless network loses none. The counters start"
        " when the driver is loaded, and are compared with the packets since then."
    ),
    reads=("/sys/class/infiniband/*/ports/*/hw_counters/*", "/sys/class/infiniband/*/ports/*/counters/*"),
    source="NVIDIA, Understanding mlx5 Linux Counters; Linux Documentation/ABI/stable/sysfs-class-infiniband",
    weight=38,
    needs=RAILS,
    on_text=_losses_of_text,
).of_node
def rdma_losses(node: Node) -> Iterator[Finding]:
    """One finding a port: slow where one in 100,000 packets is lost, else a note."""
    yield from _losses(node, node.rail_ports)


def _losses(node: Node, ports: Iterable[RdmaPort]) -> Iterator[Finding]:
    for port in ports:
        counters, packets, in_packets = _counters(node, port)
        lost, link = _above_zero(counters, LOST), _above_zero(counters, LINK_ERRORS)
        losses, errors = sum(lost.values()), sum(link.values())
        often = losses * _PER_PACKETS >= packets > 0 and all(name in counters for name in _PACKETS)
        if max(losses, errors) >= _SOME:
            yield finding(
                Severity.SLOW if often and lost else Severity.NOTE,
                f"{port.device} counted {losses or errors} {'lost or repeated packets' if lost else 'link errors'}"
                + in_packets,
                *(f"{port_folder(node.snapshot, port)}/{path} = {value}" for path, value in (lost | link).items()),
                effect="entire windows are sent again (not measured); a lossless network loses no packets",
                fix="check flow control on the switch and the card (PFC for one priority, ECN), and that NCCL_IB_TC"
                " matches that priority; symbol_error means a bad cable",
                devices=port_devices(port),
            )


def _above_zero(counters: Mapping[str, int], paths: Iterable[str]) -> dict[str, int]:
    return {path: value for path in paths if (value := counters.get(path, 0))}


_SOME = 100
"""Losses below this are noise: links come up, cables are touched."""
_PER_PACKETS = 100_000
"""One loss in so many packets costs about 1 % of the bandwidth of go-back-N at 100 Gb/s (not measured on L40S)."""
