"""What nodes are asked: a snapshot of each, and the paths to each other: every pair, on the plan's ports, at full frame
size, rail to rail; and between a node's own cards."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from orchestrator.doctor.rules.support.cluster import Cluster, Node
from orchestrator.engines.engine import moe_root
from orchestrator.engines.registry import dialects
from orchestrator.loading.resources import Library
from orchestrator.model import packages
from orchestrator.model.deadlines import DIAL_S, DIAL_TRY_S, LISTEN_S, LISTENER_END_S, LOOK_S, NVML_S, UNHEARD_TRY_S
from orchestrator.model.errors import InputError, NodeError
from orchestrator.model.inventory import Inventory, NodeSpec
from orchestrator.model.per_node import PerNode
from orchestrator.model.profile import Stack
from orchestrator.model.snapshot import Snapshot, snapshot_from_json
from orchestrator.planning.host import venv
from orchestrator.protocol.looks import (
    DialAnswer,
    DialRequest,
    DialTarget,
    LabelsAnswer,
    LabelsRequest,
    Listening,
    ListenRequest,
    ProbeRequest,
    StackQuestion,
    Trial,
    TunedFolders,
)
from orchestrator.protocol.message import parsed
from orchestrator.remote import node_app
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import ask
from orchestrator.remote.session import Session
from orchestrator.topology.network import carrier
from orchestrator.topology.rdma import card_of


def look(fleet: Fleet, nodes: Iterable[NodeSpec], stack: Stack | None = None) -> PerNode[Snapshot]:
    """A snapshot of each node, with what is installed there of its stack.

    stack: None for the one that the inventory names for the node; where it names none, only l40s_venv is looked at
    Its host facts have two more than the node gave: `clock_offset_s`, the node's clock less ours, and
    `round_trip_s`, twice the most that the offset can be wrong by.
    """
    return fleet.on_every(lambda session: _look_at(session, stack), only={node.name for node in nodes})


def _look_at(session: Session, stack: Stack | None) -> Snapshot:
    spec = session.spec
    request = ProbeRequest(
        node=spec.name,
        fs_root=spec.fs_root,
        nvml_deadline_s=NVML_S,
        state_dir=spec.state_dir,
        model_root=spec.model_root,
        engine_user=spec.engine_user or "",
        stack=_about_the_stack(spec, stack or named_stack(spec.stack)),
    )
    sent = time.time()
    answer = node_app.call(session, "probe", request, deadline_s=LOOK_S)
    received = time.time()
    try:
        snapshot = snapshot_from_json(answer)
    except ValueError as wrong:
        raise NodeError(
            f"the probe's answer is not a snapshot: {wrong}",
            where=spec.name,
            fix="report this bug, with the files of `l40s-deploy discover --save DIR`",
        ) from None
    return replace(snapshot, node=spec.name, host=_with_clock_offset(snapshot, sent, received))


def named_stack(name: object) -> Stack | None:
    """The stack of this name; None if there is none; callers that need it report that."""
    if not isinstance(name, str) or not name:
        return None
    try:
        return Library.stack(name)
    except InputError:
        return None


def reported_stack(name: str) -> Stack | None:
    """The stack of a name that a node reports; None if it is not known here."""
    try:
        return Library.reported_stack(name)
    except InputError:
        return None


def _about_the_stack(spec: NodeSpec, stack: Stack | None) -> StackQuestion | None:
    if stack is None:
        return StackQuestion(venv=spec.venv, packages=packages.ALL) if spec.venv else None
    question = StackQuestion(
        venv=venv(spec, stack.name), name=stack.name, packages=packages.ALL, evidence=dict(stack.evidence)
    )
    family = dialects().get(stack.dialect)
    if family is not None and stack.device == "cuda":
        rules = family.engine(stack.engine_version).tuned
        directory = {**dict(stack.env), **dict(spec.overrides.env)}.get(rules.variable, "") if rules.variable else ""
        folders = TunedFolders(moe=moe_root(rules, directory), by_triton=rules.by_triton, linear=rules.linear)
        return replace(question, tuned=folders)
    return question


def _with_clock_offset(snapshot: Snapshot, sent: float, received: float) -> dict[str, object]:
    """The probe reads the clock last, so half of the remaining round trip is behind it."""
    host = dict(snapshot.host)
    clock, spent = host.get("clock"), host.get("probe_seconds")
    if isinstance(clock, (int, float)):
        inside = spent.get("all") if isinstance(spent, dict) else None
        way = max(0.0, received - sent - (inside if isinstance(inside, (int, float)) else 0.0))
        host["clock_offset_s"] = round(clock - (received - way / 2), 4)
        host["round_trip_s"] = round(way, 4)
    return host


def labels_of(inventory: Inventory, names: Collection[str]) -> PerNode[LabelsAnswer]:
    """Of these nodes, all at once; what a node does not tell is left out on the page."""

    def one(session: Session) -> LabelsAnswer:
        request = LabelsRequest(fs_root=session.spec.fs_root)
        return ask(session, "labels", request, LabelsAnswer, deadline_s=LOOK_S)

    with Fleet([node for node in inventory.nodes if node.name in names]) as fleet:
        return fleet.on_every(one, only=list(names))


TRIES, SPACING_S = 4, 0.5
"""Only what did not pass is tried again. With 8 % of all packets lost in both directions a try fails in 15 of
100 cases, four of them in one of 2,000 (calculated)."""
Rails = Mapping[str, tuple[str, str]]
"""{RDMA device: (address, interface)}."""
_Target = Callable[..., DialTarget]
MOST_TRIED_ACROSS = 8
"""In a larger gang each node tries the next one's other rails only: NCCL's rings go there."""


def try_ways(fleet: Fleet, cluster: Cluster) -> tuple[Trial, ...]:
    """All trials between the nodes of each gang. A node that fails to listen or dial gives none of its own."""
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
        lines = node_app.stream(session, "listen", request)
        listeners[spec.name] = lines
        first = parsed(next(iter(lines), b"{}"))
        value = first.get("value") if isinstance(first, dict) else first
        return node_app.answer_of(session, "listen", value, Listening)

    opened = fleet.on_every(listen, only=set(addresses)).values

    def dial(session: Session) -> list[Trial]:
        spec, name = session.spec, session.spec.name
        targets = *_targets(spec, cluster, addresses, ways, opened), *_within(nodes[name], ways[name], opened[name])
        request = DialRequest(targets=targets, tries=TRIES, spacing_s=SPACING_S)
        said = node_app.call(session, "dial", request, deadline_s=DIAL_S)
        tried = node_app.answer_of(session, "dial", {"ways": said}, DialAnswer).ways
        return [replace(trial, source=name) for trial in tried]

    try:
        tried = fleet.on_every(dial, only=set(opened))
    finally:
        for lines in listeners.values():
            getattr(lines, "close", lambda: None)()
        _let_ports_go(fleet, opened)
    return tuple(trial for trials in tried.values.values() for trial in trials)


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
        tcp = [port for port in sorted(_ports(other)) if listening.tcp.get(str(port)) in ("listening", "taken")]
        for port in (*tcp, *([listening.ephemeral] if isinstance(listening.ephemeral, int) else [])):
            yield base(kind="tcp", side="tcp", address=addresses[name], port=port)
        yield from _datagrams(base, "tcp", addresses[spec.name], addresses[name], mtus, listening)
        same = _same_rail(ways[spec.name], ways[name])
        for device, (address, _) in ways[name].items():
            if device in same:
                source, interface = ways[spec.name][same[device]]
                yield from _datagrams(base, same[device], source, address, mtus, listening, interface)
        if len(cluster.specs) <= MOST_TRIED_ACROSS or other.node_rank == (spec.node_rank + 1) % len(cluster.specs):
            yield from _across(base, ways[spec.name], ways[name], same, listening)


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
