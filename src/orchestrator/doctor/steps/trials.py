"""What nodes are asked about each other: the paths of every pair, on the plan's ports, at full frame size, rail to
rail; and between a node's own cards. And their labels."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from orchestrator.doctor.rules.support.cluster import Cluster, Node
from orchestrator.model.deadlines import DIAL_S, DIAL_TRY_S, LISTEN_S, LISTENER_END_S, LOOK_S, MARGIN_S, UNHEARD_TRY_S
from orchestrator.model.inventory import NodeSpec
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.looks import (
    DialAnswer,
    DialRequest,
    DialTarget,
    LabelsAnswer,
    LabelsRequest,
    Listening,
    ListenRequest,
    Outcome,
    Trial,
)
from orchestrator.protocol.message import parsed
from orchestrator.remote import node_app
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import ask
from orchestrator.remote.session import Session
from orchestrator.topology.network import carrier
from orchestrator.topology.rdma import card_of


def labels_of(fleet: Fleet, names: Collection[str]) -> PerNode[LabelsAnswer]:
    """Of these nodes, all at once; what a node does not tell is left out on the page."""

    def read_labels(session: Session) -> LabelsAnswer:
        request = LabelsRequest(fs_root=session.spec.fs_root)
        return ask(session, "labels", request, LabelsAnswer, deadline_s=LOOK_S)

    return fleet.on_every(read_labels, only=list(names))


TRIES, SPACING_S = 4, 0.5
"""Only what did not pass is tried again. With 8 % of all packets lost in both directions a try fails in 15 of
100 cases, four of them in one of 2,000 (calculated)."""
Rails = Mapping[str, tuple[str, str]]
"""{RDMA device: (address, interface)}."""
_Target = Callable[..., DialTarget]
_LISTENS = node_app.StreamLimit(total_s=LISTEN_S + MARGIN_S)
MOST_TRIED_ACROSS = 8
"""In a larger gang each node tries the next one's other rails only: NCCL's rings go there."""


def try_ways(fleet: Fleet, cluster: Cluster) -> tuple[Trial, ...]:
    """All trials between the nodes of each gang. A node that fails to listen or dial gives none of its own, and where
    the nodes took so long that a listener may have ended before, only what passed is told: the rest is not known."""
    addresses = {name: choice.address for name, choice in cluster.tcp.items()}
    nodes = {node.name: node for node in cluster.nodes}
    ways = {name: dict(_rail_addresses(node)) for name, node in nodes.items()}
    listeners: dict[str, Iterator[bytes]] = {}

    def listen(session: Session) -> Listening:
        spec = session.spec
        request = ListenRequest(
            address=addresses[spec.name],
            tcp_ports=tuple(sorted(_ports(spec))),
            seconds=LISTEN_S,
            rails=dict(ways[spec.name].values()),
        )
        lines = node_app.stream(session, "listen", request, _LISTENS)
        listeners[spec.name] = lines
        return _listening(session, lines)

    began = time.monotonic()
    opened = fleet.on_every(listen, only=set(addresses)).values

    def dial(session: Session) -> list[Trial]:
        spec, name = session.spec, session.spec.name
        targets = *_targets(spec, cluster, addresses, ways, opened), *_within(nodes[name], ways[name], opened[name])
        request = DialRequest(targets=targets, tries=TRIES, spacing_s=SPACING_S)
        dialled = node_app.call(session, "dial", request, deadline_s=DIAL_S)
        tried = node_app.answer_of(session, "dial", {"ways": dialled}, DialAnswer).ways
        return [replace(trial, source=name) for trial in tried]

    try:
        tried = fleet.on_every(dial, only=set(opened))
        took_s = time.monotonic() - began
    finally:
        for lines in listeners.values():
            getattr(lines, "close", lambda: None)()
        _let_ports_go(fleet, opened)
    trials = tuple(trial for of_node in tried.values.values() for trial in of_node)
    return trials if took_s < LISTEN_S else _passed(trials)


def _listening(session: Session, lines: Iterator[bytes]) -> Listening:
    """A listener's first line: what is open."""
    first = parsed(next(iter(lines), b"{}"))
    value = first.get("value") if isinstance(first, dict) else first
    return node_app.answer_of(session, "listen", value, Listening)


def _passed(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    return tuple(trial for trial in trials if trial.outcome is Outcome.OPEN)


def _let_ports_go(fleet: Fleet, opened: Mapping[str, Listening]) -> None:
    """Until no listener is left: a start that follows finds these ports taken otherwise. One that does not end in time
    is named by whoever wants its port."""
    tries = int(LISTENER_END_S / 0.05)

    def gone(session: Session) -> None:
        pid = opened[session.spec.name].pid
        script = f"i=0; while [ -d /proc/{pid} ] && [ $i -lt {tries} ]; do sleep 0.05; i=$((i+1)); done"
        session.run(script, deadline_s=LISTENER_END_S + DIAL_TRY_S)

    fleet.on_every(gone, only={name for name, value in opened.items() if value.pid > 0})


def _ports(spec: NodeSpec) -> set[int]:
    """What others of the gang will connect to on this node; the leader also listens for the rendezvous and agents."""
    leader = {spec.ports.dist_init, spec.ports.agent} if spec.node_rank == 0 else set()
    return leader | ({spec.ports.nccl} if spec.ports.nccl else set())


def _rail_addresses(node: Node) -> Iterator[tuple[str, tuple[str, str]]]:
    """RDMA device, with the IPv4 address and the name of its net device, for every usable port."""
    for port in node.usable:
        interface = node.interfaces.get(carrier(port, node.topology))
        if interface is not None and interface.ipv4:
            yield port.device, (interface.ipv4[0].partition("/")[0], interface.name)


def _targets(
    spec: NodeSpec,
    cluster: Cluster,
    addresses: Mapping[str, str],
    ways: Mapping[str, Rails],
    opened: Mapping[str, Listening],
) -> Iterator[DialTarget]:
    mtus = {
        address.partition("/")[0]: interface.mtu
        for interface in cluster.topologies[spec.name].interfaces
        for address in interface.ipv4
    }
    for name, other in cluster.specs.items():
        if name == spec.name or other.gang != spec.gang or name not in opened:
            continue
        listening = opened[name]
        base = partial(DialTarget, name=name, timeout_s=DIAL_TRY_S)
        for port in _open_ports(other, listening):
            yield base(kind="tcp", side="tcp", address=addresses[name], port=port)
        yield from _datagrams(base, "tcp", addresses[spec.name], addresses[name], mtus, listening)
        same = _same_rail(ways[spec.name], ways[name])
        for device, (address, _) in ways[name].items():
            if device in same:
                source, interface = ways[spec.name][same[device]]
                yield from _datagrams(base, same[device], source, address, mtus, listening, interface)
        if len(cluster.specs) <= MOST_TRIED_ACROSS or other.node_rank == (spec.node_rank + 1) % len(cluster.specs):
            yield from _across(base, ways[spec.name], ways[name], same, listening)


def _open_ports(node: NodeSpec, listening: Listening) -> Iterator[int]:
    """TCP ports of a node that somebody listens at: the gang's, and the trial's own."""
    for port in sorted(_ports(node)):
        if listening.tcp.get(str(port)) in ("listening", "taken"):
            yield port
    if isinstance(listening.ephemeral, int):
        yield listening.ephemeral


def _same_rail(mine: Rails, theirs: Rails) -> dict[str, str]:
    """{their device: mine on the same rail}: of the same name, else in the same place among the usable ports."""
    pairs = {device: device for device in theirs if device in mine}
    left = [device for device in theirs if device not in pairs]
    rest = [device for device in mine if device not in pairs.values()]
    return pairs | dict(zip(left, rest, strict=False))


def _across(
    base: _Target, mine: Rails, theirs: Rails, same: Mapping[str, str], listening: Listening
) -> Iterator[DialTarget]:
    """From each port of mine to every port of another rail, out by that port alone, as RDMA goes."""
    for device, (source, interface) in mine.items():
        for far, (address, _) in theirs.items():
            port = listening.rails.get(address)
            if same.get(far) != device and isinstance(port, int):
                yield base(
                    kind="mtu",
                    side=device,
                    far=far,
                    source=source,
                    device=interface,
                    address=address,
                    port=port,
                    size=64,
                )


def _within(node: Node, mine: Rails, listening: Listening) -> Iterator[DialTarget]:
    """From each port of a node to those of its other cards, out by that port and in by the other one."""
    cards = {port.device: card_of(port) for port in node.usable}
    for device in mine:
        others = {far: way for far, way in mine.items() if cards[far] != cards[device]}
        heard = all(node.hears_itself(way[1]) for way in (mine[device], *others.values()))
        timeout_s = DIAL_TRY_S if heard else UNHEARD_TRY_S
        base = partial(DialTarget, name=node.name, timeout_s=timeout_s, once=not heard)
        yield from _across(base, {device: mine[device]}, others, {}, listening)


def _datagrams(
    base: _Target,
    side: str,
    source: str,
    target: str,
    mtus: Mapping[str, int],
    listening: Listening,
    device: str = "",
) -> Iterator[DialTarget]:
    """device: the interface to go out by, as RDMA does, whatever the routes say; the other end hears by its own."""
    port = listening.rails.get(target) if device else listening.udp.get(target)
    if not isinstance(port, int):
        return
    for size in sorted({64, mtus.get(source) or 1500}):
        yield base(kind="mtu", side=side, source=source, address=target, port=port, size=size, device=device)
