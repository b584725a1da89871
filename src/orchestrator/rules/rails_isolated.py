"""Rails that can't reach each other, where NCCL will send traffic from one card of a node to the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.reach import Outcome, Trial
from orchestrator.rules.support.blame import blamed
from orchestrator.rules.support.cluster import Cluster, Node
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.halves import gpu_groups

RULE = Rule(
    id="RAILS-ISOLATED",
    title="rails can't reach each other, which NCCL needs here",
    explain=(
        "Where the cards are faster than the link between the sockets, NCCL treats each half of a node as a node. Its"
        " rings then leave a half by card A and enter the other half, or the next node, by card B: all RDMA ports of"
        " a gang must reach each other. With separate VLANs, or subnets without a route, the start fails. Tested"
        " between nodes, from each port's own interface; the result is assumed to hold between the halves of a node"
        " too, whose packets the kernel would not send out."
    ),
    reads=("datagrams from each rail port to the other rails' ports of other nodes", "the PCI tree and port rates"),
    source="NCCL src/graph/paths.cc ncclTopoCheckNet, src/graph/connect.cc connectRings; NCCL_NET_DISABLE_INTRA",
    weight=6,
)
_CLOSED = (Outcome.SILENT, Outcome.UNREACHABLE, Outcome.REFUSED)
"""Refused: the packet came in by another port of the machine, where RDMA does not take it."""
_STAYS_INSIDE = "NCCL_NET_DISABLE_INTRA"


def check(cluster: Cluster) -> Iterator[Finding]:
    """One stop a gang, where its nodes fall into halves and a port can't reach one of another card."""
    for gang in cluster.gangs:
        names = {node.name: node for node in gang}
        across = [trial for trial in cluster.trials if trial.far and {trial.source, trial.target} <= set(names)]
        needed = [trial for trial in across if _other_card(names[trial.source], names[trial.target], trial)]
        closed = [trial for trial in needed if trial.outcome in _CLOSED]
        if closed and _falls_apart(cluster, gang):
            yield _finding(cluster, gang, closed, len(needed))


def _other_card(source: Node, target: Node, trial: Trial) -> bool:
    """Whether the two ports are of cards in different places: the ports of one card go together."""
    places = [
        next((place for place, port in node.rail_places.items() if port.device == device), None)
        for node, device in ((source, trial.side), (target, trial.far))
    ]
    return places[0] is None or places[1] is None or places[0][:2] != places[1][:2]


def _falls_apart(cluster: Cluster, gang: Sequence[Node]) -> bool:
    """Whether NCCL will carry traffic inside a node over the network, by the version of its stack."""
    if len(gang) < 2 or not all(node.usable for node in gang):
        return False
    if any(dict(node.spec.overrides.env).get(_STAYS_INSIDE) == "1" for node in gang):
        return False
    return any(gpu_groups(node.topology, cluster.nccl_version(node)).over_network for node in gang)


def _finding(cluster: Cluster, gang: Sequence[Node], closed: Sequence[Trial], tried: int) -> Finding:
    first = closed[0]
    blame = list(blamed({(trial.source, trial.target) for trial in closed}))
    version = ".".join(map(str, cluster.nccl_version(gang[0])))
    return Finding(
        id=RULE.id,
        severity=Severity.STOP,
        node=blame[0][0] if len(blame) == 1 and len(gang) > 2 else "",
        devices=tuple(dict.fromkeys(device for trial in closed for device in (trial.side, trial.far))),
        title=f"gang {gang[0].spec.gang}: rails can't reach each other: {first.side} of {first.source} does not reach"
        f" {first.far} of {first.target} ({len(closed)} of {tried} paths between cards are closed)",
        evidence=tuple(
            f"{trial.source} {trial.side} -> {trial.target} {trial.far} ({trial.address}): {trial.outcome.value}"
            f"{f' {trial.detail}' if trial.detail else ''}"
            for trial in closed[:6]
        ),
        effect=f"NCCL {version} treats the halves of a node as nodes and connects card to card: the start fails with"
        " ibv_modify_qp 110 (ETIMEDOUT)",
        fix="route between the rails' subnets, or put all rails into one network; or let the halves communicate"
        " through the CPU: set l40s_env: {NCCL_NET_DISABLE_INTRA: '1', NCCL_CROSS_NIC: '0'} (about 11 instead of"
        " 19 GB/s between them)",
    )
