"""Rails that can't reach each other, where NCCL will send traffic from one card of a node to the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.reach import Outcome, Trial
from orchestrator.model.topology import RAILS, Area
from orchestrator.rules.support.blame import blamed
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.ports import hears_itself
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.gpu_groups import gpu_groups

RULE = Rule(
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
)
_CLOSED = (Outcome.SILENT, Outcome.UNREACHABLE, Outcome.REFUSED)
"""Refused: the packet came in by another port of the machine, where RDMA does not take it."""
_STAYS_INSIDE = "NCCL_NET_DISABLE_INTRA"
_INSIDE = (
    "let the halves communicate through the CPU: set l40s_env: {NCCL_NET_DISABLE_INTRA: '1', NCCL_CROSS_NIC: '0'}"
    " (about 11 instead of 19 GB/s between them)"
)


@dataclass(frozen=True, slots=True)
class _Paths:
    """What trials tell of the paths between a gang's cards.

    told:    number of paths that are known to be open or closed; not known are those within a node that drops its own
             packets
    closed:  those of them that let nothing through
    unknown: those within such a node whose ARP request got no answer
    """

    told: int
    closed: Sequence[Trial]
    unknown: Sequence[Trial]


def check(cluster: Cluster) -> Iterator[Finding]:
    """One stop a gang, if its nodes fall into halves and a port can't reach one of another card; unknown if that could
    not be tried within a node."""
    for gang in cluster.gangs:
        paths = _paths(cluster.trials, {node.name: node for node in gang})
        if (paths.closed or paths.unknown) and _falls_apart(cluster, gang):
            yield _finding(cluster, gang, paths) if paths.closed else _unknown(cluster, gang, paths.unknown)


def _paths(trials: Sequence[Trial], gang: Mapping[str, Node]) -> _Paths:
    full = {trial.source for trial in trials if trial.outcome is Outcome.UNTRIED}
    needed = [trial for trial in trials if _between_cards(trial, gang) and not {trial.source, trial.target} & full]
    told = [trial for trial in needed if not _dropped(trial, gang[trial.source])]
    return _Paths(
        told=len(told),
        closed=[trial for trial in told if trial.outcome in _CLOSED],
        unknown=[trial for trial in needed if not trial.resolved and _dropped(trial, gang[trial.source])],
    )


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
    netdevs = [port.netdev for port in node.usable if port.device in (trial.side, trial.far)]
    return not all(hears_itself(node, netdev) for netdev in netdevs)


def _falls_apart(cluster: Cluster, gang: Sequence[Node]) -> bool:
    """Whether NCCL, in the version of the node's stack, will carry traffic within a node over the network."""
    if not all(node.usable for node in gang):
        return False
    if any(dict(node.spec.overrides.env).get(_STAYS_INSIDE) == "1" for node in gang):
        return False
    return any(gpu_groups(node.topology, cluster.nccl_version(node)).over_network for node in gang)


def _unknown(cluster: Cluster, gang: Sequence[Node], unresolved: Sequence[Trial]) -> Finding:
    nodes = list(dict.fromkeys(trial.source for trial in unresolved))
    return Finding(
        id=RULE.id,
        severity=Severity.UNKNOWN,
        node=nodes[0] if len(nodes) == 1 else "",
        devices=tuple(dict.fromkeys(device for trial in unresolved for device in (trial.side, trial.far))),
        title=f"gang {gang[0].spec.gang}: whether the cards of one node reach each other could not be tried on "
        + ", ".join(nodes),
        evidence=(
            *(f"{one.source} {one.side} -> {one.far} ({one.address}): no answer to ARP" for one in unresolved[:6]),
            "net.ipv4.conf: accept_local = 0, or rp_filter = 1",
        ),
        effect=f"NCCL {_version(cluster, gang)} treats the halves of a node as nodes and connects card to card within "
        "it too. RDMA resolves the address by ARP, and this node does not answer its own: the start may fail with "
        "ibv_modify_qp 110 (ETIMEDOUT)",
        fix="run `sudo sysctl -w net.ipv4.conf.all.accept_local=1 net.ipv4.conf.all.rp_filter=2` on each of them, then"
        f" `l40s-deploy doctor` again; or {_INSIDE}",
    )


def _version(cluster: Cluster, gang: Sequence[Node]) -> str:
    return ".".join(map(str, cluster.nccl_version(gang[0])))


def _finding(cluster: Cluster, gang: Sequence[Node], paths: _Paths) -> Finding:
    closed, first = paths.closed, paths.closed[0]
    pairs = {(trial.source, trial.target) for trial in closed}
    blame = list(blamed(pairs))
    one = len(blame) == 1 and (len(gang) > 2 or all(source == target for source, target in pairs))
    return Finding(
        id=RULE.id,
        severity=Severity.STOP,
        node=blame[0][0] if one else "",
        devices=tuple(dict.fromkeys(device for trial in closed for device in (trial.side, trial.far))),
        title=f"gang {gang[0].spec.gang}: rails can't reach each other: {first.side} of {first.source} does not reach"
        f" {first.far} of {first.target} ({len(closed)} of {paths.told} paths between cards are closed)",
        evidence=tuple(
            f"{trial.source} {trial.side} -> {trial.target} {trial.far} ({trial.address}): {trial.outcome.value}"
            f"{f' {trial.detail}' if trial.detail else ''}{'' if trial.resolved else ', no answer to ARP'}"
            for trial in closed[:6]
        ),
        effect=f"NCCL {_version(cluster, gang)} treats the halves of a node as nodes and connects card to card: the "
        "start fails with ibv_modify_qp 110 (ETIMEDOUT)",
        fix=f"route between the rails' subnets, or put all rails into one network; or {_INSIDE}",
    )
