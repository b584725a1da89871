"""Paths between nodes: networks in common, ports and packets that pass, rails that reach each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from ipaddress import IPv4Interface

from orchestrator.doctor.rules.support.cluster import Cluster, Node, gangs_of
from orchestrator.doctor.rules.support.registry import Rule, finding, slow, stop, unknown
from orchestrator.model.finding import Finding
from orchestrator.model.per_node import collected
from orchestrator.model.topology import NETWORKS, RAILS, Area
from orchestrator.planning.choices import tcp_choices
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.looks import Outcome, Trial
from orchestrator.protocol.severity import Severity
from orchestrator.topology.distance import gpu_groups
from orchestrator.topology.network import carrier
from orchestrator.topology.speed import Traffic, price

Way = tuple[str, str]
"""(source, target)."""


def blamed(failed: Collection[Way]) -> Iterator[tuple[str, list[Way]]]:
    """The fewest nodes that explain all failed paths, each with those that it explains: the one with most first; in a
    tie, the target."""
    left = sorted(set(failed))
    while left:
        counts = Counter(node for way in left for node in way)
        targets = Counter(target for _, target in left)
        worst = min(counts, key=lambda node: (-counts[node], -targets[node], node))
        yield worst, [way for way in left if worst in way]
        left = [way for way in left if worst not in way]


@Rule(
    id="NO-COMMON-NETWORK",
    title="the nodes of a gang share no network",
    explain="Rendezvous, Gloo, NCCL's bootstrap and the node agents need one IPv4 network that all nodes share.",
    reads=("addresses of all interfaces", "l40s_address and l40s_socket_ifname of the inventory"),
    source="torch's TCPStore, Gloo and NCCL's bootstrap connect every rank with every other",
    weight=3,
    needs=NETWORKS,
).of_cluster
def no_common_network(cluster: Cluster) -> Iterator[Finding]:
    """One finding per gang: on the outlier, if there is one."""
    for members in cluster.gangs:
        if (failure := _failure(cluster, members)) is not None:
            networks = {node.name: _networks(node) for node in members}
            apart = _apart(networks)
            yield stop(
                failure.what,
                *(f"{name}: {', '.join(sorted(texts)) or 'no IPv4 network'}" for name, texts in networks.items()),
                effect="the gang can't start: its ranks can't meet",
                fix=failure.fix,
                node=apart[0] if len(apart) == 1 else "",
            )


def _failure(cluster: Cluster, members: Sequence[Node]) -> DeployError | None:
    (gang,) = gangs_of(node.spec for node in members)
    try:
        tcp_choices(gang, cluster.topologies)
    except DeployError as failure:
        return failure
    return None


def _networks(node: Node) -> frozenset[str]:
    return frozenset(
        str(IPv4Interface(text).network)
        for interface in node.topology.interfaces
        if interface.up and not interface.bond and interface.name != "lo"
        for text in interface.ipv4
    )


def _apart(networks: Mapping[str, frozenset[str]]) -> list[str]:
    """The nodes without the network that most nodes have."""
    counts = Counter(network for known in networks.values() for network in known)
    common = {network for network, _ in counts.most_common(1)}
    return [name for name, known in networks.items() if common - known]


@Rule(
    id="PORT-BLOCKED",
    title="a node can't be reached from another node",
    explain=(
        "Tested with real packets between all nodes: the plan's ports and an ephemeral one over TCP, and datagrams of"
        " the interface's full MTU that must not be fragmented. Dropped and refused connections are reported"
        " separately. The findings name the fewest nodes that explain all failures. A node whose table of neighbours is"
        " full drops packets by itself: its paths are unknown."
    ),
    reads=("connections and datagrams between the nodes",),
    source="torch's store and Gloo, NCCL's bootstrap and SGLang's queues use fixed and ephemeral TCP ports",
    weight=7,
).of_cluster
def port_blocked(cluster: Cluster) -> Iterator[Finding]:
    """One finding for each node that nothing reaches on a side; otherwise one for each port or size that is blocked."""
    full = {trial.source for trial in cluster.trials if trial.outcome is Outcome.UNTRIED}
    yield from (_untried(node, cluster.trials) for node in sorted(full))
    trials_told = [
        trial for trial in cluster.trials if trial.outcome is Outcome.OPEN or not {trial.source, trial.target} & full
    ]
    # what goes from one rail to another is for RAILS-ISOLATED to judge
    for side, trials in collected((trial.side, trial) for trial in trials_told if not trial.far).items():
        yield from _of_side(side, trials, _fixed_ports(cluster))


def _of_side(side: str, trials: Sequence[Trial], fixed: frozenset[int]) -> Iterator[Finding]:
    ways = collected((_way(trial), trial) for trial in trials)
    alive = [way for way, tried in ways.items() if any(trial.outcome in _PASSED for trial in tried)]
    for node, explained in blamed(ways.keys() - alive):
        yield _unreachable(node, side, [trial for way in explained for trial in ways[way]])
    failed = [trial for way in alive for trial in ways[way] if trial.outcome is not Outcome.OPEN]
    yield from _partly(side, failed, fixed)


def _fixed_ports(cluster: Cluster) -> frozenset[int]:
    ports = (spec.ports for spec in cluster.specs.values())
    return frozenset(port for each in ports for port in (each.dist_init, each.agent, each.nccl) if port)


_TCP = "tcp"
_PASSED = (Outcome.OPEN, Outcome.TOO_BIG)


def _untried(node: str, trials: Sequence[Trial]) -> Finding:
    mine = [trial for trial in trials if trial.source == node]
    lost = [trial for trial in mine if trial.outcome is Outcome.UNTRIED]
    return unknown(
        f"{len(lost)} of {len(mine)} paths could not be tried: the kernel's table of neighbours is full",
        *_evidence(lost),
        effect="packets to other nodes are dropped as long as it is full; which paths are open is not known",
        fix="run `sudo sysctl -w net.ipv4.neigh.default.gc_thresh1=4096 net.ipv4.neigh.default.gc_thresh2=16384"
        " net.ipv4.neigh.default.gc_thresh3=32768` there",
        node=node,
    )


def _way(trial: Trial) -> Way:
    return trial.source, trial.target


def _partly(side: str, failed: Sequence[Trial], fixed: frozenset[int]) -> Iterator[Finding]:
    """Where some trials of a way pass and one port or one size does not. Ephemeral ports count as one, number 0."""
    kinds = collected(
        ((trial.kind, trial.port if trial.kind == _TCP and trial.port in fixed else 0), trial) for trial in failed
    )
    for (kind, port), trials in kinds.items():
        for node, explained in blamed({_way(trial) for trial in trials}):
            mine = [trial for trial in trials if _way(trial) in explained]
            yield _blocked(node, port, mine) if kind == _TCP else _too_big(node, side, mine)


def _way_words(node: str, trials: Sequence[Trial]) -> str:
    """'from node1, node2', 'to node3' or both, as seen from the node."""
    sources = sorted({trial.source for trial in trials} - {node})
    targets = sorted({trial.target for trial in trials} - {node})
    parts = [f"from {', '.join(sources)}"] if sources else []
    if targets and targets != sources:
        parts.append(f"to {', '.join(targets)}")
    return " or ".join(parts)


def _evidence(trials: Sequence[Trial]) -> tuple[str, ...]:
    return tuple(
        f"{trial.source} -> {trial.target} {trial.address}:{trial.port} "
        f"({trial.kind}{f' {trial.size} bytes' if trial.size else ''}): "
        f"{trial.outcome.value}{f' {trial.detail}' if trial.detail else ''}"
        f"{f' in {trial.tries} tries' if trial.tries > 1 else ''}"
        for trial in trials[:6]
    )


def _unreachable(node: str, side: str, trials: Sequence[Trial]) -> Finding:
    rail = side != _TCP
    silent = all(trial.outcome is Outcome.SILENT for trial in trials)
    return finding(
        Severity.SLOW if rail else Severity.STOP,
        f"no connection {'on the rail of ' + side + ' ' if rail else ''}{_way_words(node, trials)}: "
        + ("packets are dropped" if silent else "the path is blocked"),
        *_evidence(trials),
        effect=price(Traffic.HALF_THE_PORTS) if rail else "the gang can't start: its ranks can't connect",
        fix="check the rail's cable, VLAN and address (`ping` from the peers)"
        if rail
        else "check routes and firewalls between the nodes (`iptables -L`, `nft list ruleset`, security groups)",
        devices=(side,) if rail else (),
        node=node,
    )


def _blocked(node: str, port: int, trials: Sequence[Trial]) -> Finding:
    silent = any(trial.outcome is Outcome.SILENT for trial in trials)
    return stop(
        f"TCP port {port or trials[0].port}{'' if port else ' (any ephemeral one)'} is"
        f" {'dropped by a firewall' if silent else 'not to be reached'} {_way_words(node, trials)}; other ports"
        " are open",
        *_evidence(trials),
        effect="the gang can't start: a rank waits for its peers until it times out",
        fix=f"open {f'TCP {port} and ' if port else ''}the ephemeral range "
        "(/proc/sys/net/ipv4/ip_local_port_range) between the nodes",
        devices=(f"tcp/{port or 'ephemeral'}",),
        node=node,
    )


def _too_big(node: str, side: str, trials: Sequence[Trial]) -> Finding:
    size = max(trial.size for trial in trials)
    where = f"on the rail of {side}" if side != _TCP else "on the TCP side"
    return slow(
        f"packets of {size} bytes don't pass {where} {_way_words(node, trials)}, smaller ones do",
        *_evidence(trials),
        effect="large transfers hang or fall back to small packets (not measured)",
        fix=f"set the MTU to {size} on every switch port and interface of this network, or lower it everywhere",
        devices=(side,),
        node=node,
    )


@Rule(
    id="RAILS-ISOLATED",
    title="rails can't reach each other, which NCCL needs here",
    explain=(
        "Where the cards are faster than the link between the sockets, NCCL treats each half of a node as a node. Its"
        " rings then leave a half by card A and enter the other half, or the next node, by card B: all RDMA ports of"
        " a gang must reach each other. With separate VLANs, or subnets without a route, the start fails. Tested"
        " between nodes and from card to card of one, from each port's own interface. Linux drops packets of its own"
        " machine unless accept_local is set. Without it, an ARP request that gets no answer is unknown, since RDMA"
        " resolves addresses by the same ARP; behind a router, what holds between nodes is assumed to hold within one."
    ),
    reads=(
        "datagrams from each rail port to the ports of other cards, on other nodes and the same",
        "/proc/net/arp",
        "the PCI tree and port rates",
        "/proc/sys/net/ipv4/conf/{all,INTERFACE}/{accept_local,rp_filter}",
    ),
    source="NCCL src/graph/paths.cc ncclTopoCheckNet, src/graph/connect.cc connectRings; NCCL_NET_DISABLE_INTRA; "
    "Linux drivers/infiniband/core/addr.c addr_resolve, net/ipv4/fib_frontend.c fib_validate_source",
    weight=6,
    needs=(*RAILS, Area.LINKS, Area.NUMA),
).of_cluster
def rails_isolated(cluster: Cluster) -> Iterator[Finding]:
    """One stop a gang, if its nodes fall into halves and a port can't reach one of another card; unknown if that could
    not be tried within a node."""
    for gang in cluster.gangs:
        answered, dropped = _between_cards_of(gang, cluster.trials)
        closed = [trial for trial in answered if trial.outcome in _CLOSED]
        unresolved = [trial for trial in dropped if not trial.resolved]
        if (closed or unresolved) and _falls_apart(gang):
            yield _closed(gang, closed, len(answered)) if closed else _unresolved(gang, unresolved)


_CLOSED = (Outcome.SILENT, Outcome.UNREACHABLE, Outcome.REFUSED)
"""Refused: the packet came in by another port of the machine, where RDMA does not take it."""
_STAYS_INSIDE = "NCCL_NET_DISABLE_INTRA"
_INSIDE = (
    "let the halves communicate through the CPU: set l40s_env: {NCCL_NET_DISABLE_INTRA: '1', NCCL_CROSS_NIC: '0'}"
    " (about 11 instead of 19 GB/s between them)"
)


def _between_cards_of(gang: Sequence[Node], trials: Sequence[Trial]) -> tuple[list[Trial], list[Trial]]:
    """What trials tell of the paths between a gang's cards: those that are known to be open or closed, and those within
    a node that drops its own packets."""
    full = {trial.source for trial in trials if trial.outcome is Outcome.UNTRIED}
    nodes = {node.name: node for node in gang}
    needed = [trial for trial in trials if _between_cards(trial, nodes) and not {trial.source, trial.target} & full]
    drops = collected((_dropped(trial, nodes[trial.source]), trial) for trial in needed)
    return drops.get(False, []), drops.get(True, [])


def _between_cards(trial: Trial, gang: Mapping[str, Node]) -> bool:
    """Whether its two ports are a gang's, of cards in different places: the ports of one card go together."""
    if not trial.far or not {trial.source, trial.target} <= gang.keys():
        return False
    here, there = _place(gang[trial.source], trial.side), _place(gang[trial.target], trial.far)
    return None in (here, there) or here != there


def _place(node: Node, device: str) -> tuple[int, int] | None:
    return next(((slot.switch, slot.card) for slot, port in node.rail_places.items() if port.device == device), None)


def _dropped(trial: Trial, node: Node) -> bool:
    """Whether a path within one node may look closed only because one of its ports drops packets of its own machine."""
    if trial.source != trial.target or trial.outcome not in _CLOSED:
        return False
    netdevs = [carrier(port, node.topology) for port in node.usable if port.device in (trial.side, trial.far)]
    return not all(node.hears_itself(netdev) for netdev in netdevs)


def _falls_apart(gang: Sequence[Node]) -> bool:
    """Whether NCCL, in the version of the node's stack, will carry traffic within a node over the network."""
    inside = any(dict(node.spec.overrides.env).get(_STAYS_INSIDE) == "1" for node in gang)
    return (
        all(node.usable for node in gang)
        and not inside
        and any(gpu_groups(node.topology, node.nccl).over_network for node in gang)
    )


def _unresolved(gang: Sequence[Node], unresolved: Sequence[Trial]) -> Finding:
    nodes = list(dict.fromkeys(trial.source for trial in unresolved))
    return unknown(
        f"gang {gang[0].spec.gang}: whether the cards of one node reach each other could not be tried on "
        + ", ".join(nodes),
        *(
            f"{trial.source} {trial.side} -> {trial.far} ({trial.address}): no answer to ARP"
            for trial in unresolved[:6]
        ),
        "net.ipv4.conf: accept_local = 0, or rp_filter = 1",
        effect=f"NCCL {_version(gang)} treats the halves of a node as nodes and connects card to card within "
        "it too. RDMA resolves the address by ARP, and this node does not answer its own: the start may fail with "
        "ibv_modify_qp 110 (ETIMEDOUT)",
        fix="run `sudo sysctl -w net.ipv4.conf.all.accept_local=1 net.ipv4.conf.all.rp_filter=2` on each of them, then"
        f" `l40s-deploy doctor` again; or {_INSIDE}",
        devices=tuple(dict.fromkeys(device for trial in unresolved for device in (trial.side, trial.far))),
        node=nodes[0] if len(nodes) == 1 else "",
    )


def _version(gang: Sequence[Node]) -> str:
    return ".".join(map(str, gang[0].nccl))


def _closed(gang: Sequence[Node], closed: Sequence[Trial], tried: int) -> Finding:
    """told: number of paths that are known to be open or closed"""
    first, pairs = closed[0], set(map(_way, closed))
    blame = list(blamed(pairs))
    one_card = len(blame) == 1 and (len(gang) > 2 or all(source == target for source, target in pairs))
    return stop(
        f"gang {gang[0].spec.gang}: rails can't reach each other: {first.side} of {first.source} does not reach"
        f" {first.far} of {first.target} ({len(closed)} of {tried} paths between cards are closed)",
        *(
            f"{trial.source} {trial.side} -> {trial.target} {trial.far} ({trial.address}): {trial.outcome.value}"
            f"{f' {trial.detail}' if trial.detail else ''}{'' if trial.resolved else ', no answer to ARP'}"
            for trial in closed[:6]
        ),
        effect=f"NCCL {_version(gang)} treats the halves of a node as nodes and connects card to card: the "
        "start fails with ibv_modify_qp 110 (ETIMEDOUT)",
        fix=f"route between the rails' subnets, or put all rails into one network; or {_INSIDE}",
        devices=tuple(dict.fromkeys(device for trial in closed for device in (trial.side, trial.far))),
        node=blame[0][0] if one_card else "",
    )
