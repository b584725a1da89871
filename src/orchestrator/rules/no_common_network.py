"""The nodes of a gang have no IPv4 network in common, so their ranks can't meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Interface

from orchestrator.model.errors import DeployError
from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import NETWORKS
from orchestrator.planning.choices import tcp_choices
from orchestrator.rules.support.cluster import Cluster, Node, gangs_of
from orchestrator.rules.support.registry import Rule

RULE = Rule(
    id="NO-COMMON-NETWORK",
    title="the nodes of a gang share no network",
    explain="Rendezvous, Gloo, NCCL's bootstrap and the node agents need one IPv4 network that all nodes share.",
    reads=("addresses of all interfaces", "l40s_address and l40s_socket_ifname of the inventory"),
    source="torch's TCPStore, Gloo and NCCL's bootstrap connect every rank with every other",
    weight=3,
    needs=NETWORKS,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding per gang: on the outlier, if there is one."""
    for members in cluster.gangs:
        failure = _failure(cluster, members)
        if failure:
            yield _finding(members, failure)


def _failure(cluster: Cluster, members: Sequence[Node]) -> DeployError | None:
    try:
        for gang in gangs_of(node.spec for node in members):
            tcp_choices(gang, cluster.topologies)
    except DeployError as failure:
        return failure
    return None


def _finding(members: Sequence[Node], failure: DeployError) -> Finding:
    networks = {node.name: _networks(node) for node in members}
    apart = _apart(networks)
    return Finding(
        id=RULE.id,
        severity=Severity.STOP,
        node=apart[0] if len(apart) == 1 else "",
        devices=(),
        title=failure.what,
        evidence=tuple(f"{name}: {', '.join(sorted(found)) or 'no IPv4 network'}" for name, found in networks.items()),
        effect="the gang can't start: its ranks can't meet",
        fix=failure.fix,
    )


def _networks(node: Node) -> frozenset[str]:
    return frozenset(
        str(IPv4Interface(text).network)
        for interface in node.topology.interfaces
        if interface.up and not interface.bond and interface.name != "lo"
        for text in interface.ipv4
    )


def _apart(networks: Mapping[str, frozenset[str]]) -> list[str]:
    """The nodes without the network that most nodes have."""
    counts = Counter(network for found in networks.values() for network in found)
    if not counts:
        return []
    common = counts.most_common(1)[0][0]
    return [name for name, found in networks.items() if common not in found]
